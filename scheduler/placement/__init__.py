"""How large an executor is and on which workers executors go."""
