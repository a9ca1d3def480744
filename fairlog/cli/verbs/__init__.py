"""The verbs, one file a group: each parses its options, makes one call and prints the result.

They may import everything; `cli.main` loads each file when its verb is used. What two groups share belongs to `cli`.
"""
