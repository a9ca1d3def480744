"""The vocabulary that everybody shares: errors, resources, ids, commands, events, grants. It imports no other room."""
