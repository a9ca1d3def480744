"""The verbs, one file a group: each parses its options, makes one call and prints the result."""
