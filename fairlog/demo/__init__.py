"""The guided run on a cluster of its own. It uses the command line as a person would; nothing imports it."""
