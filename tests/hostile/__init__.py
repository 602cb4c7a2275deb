"""Inputs meant to break: tables of them, each handled rightly or refused in one line."""
