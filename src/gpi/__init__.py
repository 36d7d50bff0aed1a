"""Generalized Policy Improvement."""
