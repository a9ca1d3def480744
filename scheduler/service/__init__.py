"""The running master and its clients: inbox, turns, commits, answers.

It may import `model`, `rules` and `store`. Rules do not belong here, nor does who becomes master (`recovery`).
"""
