"""The table of MAELSTROM D2.3: application by framework by format, beside what was published."""
