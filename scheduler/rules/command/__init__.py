"""What commands cause, and who may send them. It reads the state; it enters, places and shares nothing."""
