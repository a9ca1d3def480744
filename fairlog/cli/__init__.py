"""The command line: parse, call, print. It may import every other room; nothing imports it but the demo."""
