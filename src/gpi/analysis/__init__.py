"""What runs come to, as numbers: their audit, what seeds learned and lost, what promises were worth; no drawing."""
