"""The paper's own figures."""

import opencil


def test_published_results() -> None:
    table = opencil.published_results()
    assert len(table) == 3096
    assert list(table.columns) == [
        "id_dataset",
        "classes_per_step",
        "cil",
        "detector",
        "ood_split",
        "metric",
        "value",
        "paper_table",
    ]
    assert table["value"].between(0, 100).all()
    assert set(table["metric"]) == {"acc", "auc", "fpr", "ap"}
    accuracy = table[table["metric"] == "acc"]
    assert set(accuracy["detector"]) == set(accuracy["ood_split"]) == {""}
    assert "" not in set(table.loc[table["metric"] != "acc", "detector"])


def test_spot_values() -> None:
    table = opencil.published_results()

    def value(**where: object) -> float:
        found = table
        for column, wanted in where.items():
            found = found[found[column] == wanted]
        assert found["value"].nunique() == 1
        return float(found["value"].iloc[0])

    place = {"id_dataset": "cifar100", "classes_per_step": 10, "metric": "acc"}
    assert value(cil="icarl", **place) == 60.08
    assert value(cil="bic", **place) == 61.68
