#!/usr/bin/env bash
# A detector of one's own, beside two others on two seeds, as a table for a paper.
set -euo pipefail

cat > margin.py <<'END'
from dataclasses import dataclass

import opencil


@opencil.register_detector("margin")
@dataclass
class Margin(opencil.LogitDetector):
    """Difference between the two largest logits."""

    scale: float = 1.0

    def scores(self, outputs: opencil.Outputs):
        first, second = outputs.logits.topk(2, dim=1).values.T
        return self.scale * (first - second)
END

opencil check margin.py
opencil run --plugin margin.py --benchmark digits --cil icarl --detector margin,msp --seed 0,1 --epochs-scale 0.02
opencil run --benchmark digits --cil icarl --detector energy --seed 0,1 --epochs-scale 0.02 # no model is trained again
opencil report runs --table main --detector margin,msp,energy --format latex > table.tex
opencil report runs --statistics --baseline margin
