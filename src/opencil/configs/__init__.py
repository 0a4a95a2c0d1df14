"""The shipped YML files, one per benchmark."""
