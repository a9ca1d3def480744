"""What each event changes: one function a type of event, called by `ClusterState.apply` after the preconditions held.

It may import `model` and the rest of `rules` but what decides. A function changes facts and marks whose facts it
changed besides the app and the worker that the event names; it decides nothing.
"""
