"""Readers of labelled images from downloaded files."""
