"""The paper's figures, and two that it lacks, from rows alone: what they show, and how it is drawn."""
