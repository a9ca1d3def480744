"""Decides and folds, purely: no clock, no chance, no store. It imports model alone."""
