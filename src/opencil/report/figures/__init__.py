"""Select and draw the paper's figures, and two more, from rows alone."""
