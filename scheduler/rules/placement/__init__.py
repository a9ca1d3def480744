"""Which size executors and drivers get, and on which workers. Admission stays out."""
