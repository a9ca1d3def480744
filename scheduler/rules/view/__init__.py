"""What people and programs are shown of a state. It decides nothing."""
