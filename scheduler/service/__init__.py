"""The living master and its clients: inbox, turns, commits, answers. It may import model, rules and store."""
