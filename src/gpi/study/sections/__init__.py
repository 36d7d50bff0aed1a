"""The sections of a report, each a pure function of the results."""
