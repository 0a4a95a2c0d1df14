"""Readers: from the files that people have to labelled images."""
