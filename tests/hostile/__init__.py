"""Inputs meant to break: tables of them, each handled rightly or rejected in one
line."""
