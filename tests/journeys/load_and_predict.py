"""Load a trained model, choose a threshold on known images, and predict a class or "unknown"."""

import opencil

opencil.run(benchmark="digits", cil={"icarl@quick": {"epochs": 6}}, detector="energy")

run = opencil.open_run("runs/digits/k2/icarl@quick/seed0")
model, energy = run.model(4), run.detector("energy", 4)  # after the last step


def predict(images):
    """Return the predicted classes and the detector's scores."""
    outputs = opencil.forward(model, images, run.data.transform)
    return outputs.logits.argmax(dim=1), energy.score(outputs)


labels, scores = predict(run.stream.test)  # its labels count classes in the order of the run
held_out, asked = slice(0, None, 2), slice(1, None, 2)
threshold = scores[held_out].quantile(0.05)  # refuses 5 % of known images
known = scores[asked] >= threshold
right = labels[asked] == run.stream.test.labels[asked]
accepted = predict(run.data.ood["noise"].images)[1] >= threshold
print(f"known: {known.float().mean():.1%} accepted, {right[known].float().mean():.1%} of them right")
print(f"noise: {accepted.float().mean():.1%} accepted")
