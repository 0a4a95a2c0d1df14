"""Data processing: datasets, image sets, transforms, the class-incremental stream and the exemplar memory."""
