"""Whether every entry of a log is what the rules make of the ones before it. Figures and explanations stay out."""
