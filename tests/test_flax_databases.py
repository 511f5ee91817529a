"""Databases: `from_relbench`, `TableEncoder` by its formula, and `DatabaseModel` in time."""

from __future__ import annotations

from decimal import Decimal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jax_gnn
from flax_layers import RGCN, DatabaseModel, TableEncoder
from jax_gnn.convert import from_relbench
from jax_gnn.sampling import sample_neighbors

pd = pytest.importorskip("pandas")
SECOND = {"2024-01-02 12:00:00": 1704196800, "2023-06-30 00:00:00": 1688083200}
NEVER = np.iinfo(np.int32).min


def tables(**changes):
    users = {"id": [7, 9, 5], "age": [30.0, None, 50.0], "country": ["fr", None, "de"]}
    users |= {"vip": [True, False, True], "text": [[1.0, 2.0], None, [3.0, 4.0]]}
    orders = {"user": [9, 9, 5, None, 4], "status": [3, 4, 3, 3, 4]}
    orders["at"] = pd.to_datetime([*SECOND, None, *SECOND])
    database = {
        "users": {"df": pd.DataFrame(users), "pkey_col": "id"},
        "orders": {
            "df": pd.DataFrame(orders, index=list("edcba")),
            "time_col": "at",
            "fkey_col_to_pkey_table": {"user": "users"},
        },
    }
    for path, value in changes.items():
        name, key = path.split("__")
        database[name][key] = value
    return database


def test_tables_become_a_graph():
    data = from_relbench(tables(), categorical=["orders.status"])
    key = ("orders", "f2p_user", "users")
    assert data.graph.edge_types == (key, ("users", "rev_f2p_user", "orders"))
    np.testing.assert_array_equal(data.graph.edges()[key], [[0, 1, 2], [1, 1, 2]])
    assert data.report == ("orders.user: 1 keys are of no row of users",)
    users, orders = data.nodes["users"], data.nodes["orders"]
    np.testing.assert_array_equal(users["numbers"], np.float32([[30], [np.nan], [50]]))
    np.testing.assert_array_equal(users["categories"], [[1, 1], [-1, 0], [0, 1]])
    np.testing.assert_array_equal(users["embeddings"], [[1, 2], [0, 0], [3, 4]])
    np.testing.assert_array_equal(users["time"], [NEVER] * 3)
    seconds = [*SECOND.values()]
    np.testing.assert_array_equal(orders["time"], [*seconds, NEVER, *seconds])
    np.testing.assert_array_equal(data.edges[key]["time"], [*seconds, NEVER])
    np.testing.assert_array_equal(orders["categories"], [[0], [1], [0], [0], [1]])
    np.testing.assert_array_equal(orders["numbers"][:3, 0], np.float32([2024, 2023, np.nan]))
    want = [1 / 12, 2 / 31, 1 / 7, 0.5, 0, 0]  # a Tuesday
    np.testing.assert_allclose(orders["cycles"][0, 0], want, rtol=1e-6)
    assert np.isnan(orders["cycles"][2]).all()
    assert [*data.categories["users.country"]] == ["de", "fr"]
    np.testing.assert_array_equal(data.node_names["users"], [7, 9, 5])
    orders = pd.DataFrame({"at": np.array(["1800-01-01", "9999-12-31"], "datetime64[s]")})
    far = from_relbench({"a.orders": {"df": orders, "time_col": "at"}}, categorical="a.orders.at")
    np.testing.assert_array_equal(far.nodes["a.orders"]["time"], [NEVER + 1, -NEVER - 1])
    few = from_relbench(tables(), max_categories=1)
    assert "users.country is left out: text of 2 values" in few.report


def test_classes_of_relbench():
    base = pytest.importorskip("relbench.base")
    made = {
        name: base.Table(
            table["df"],
            table.get("fkey_col_to_pkey_table", {}),
            table.get("pkey_col"),
            table.get("time_col"),
        )
        for name, table in tables().items()
    }
    ours, theirs = from_relbench(tables()), from_relbench(base.Database(made))
    for a, b in zip(*map(jax.tree.leaves, (ours.nodes, theirs.nodes)), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"users__pkey_col": "key"}, "users must have the column 'key'"),
        ({"users__pkey_col": "age"}, r"users.age must have a key of its own for each row"),
        ({"orders__time_col": "status"}, "orders.status must be dates, got int64"),
        ({"orders__fkey_col_to_pkey_table": {"user": "shops"}}, "lead to a table .*'shops'"),
        ({"orders__df": [1, 2]}, "orders must have a data frame of pandas, df, got .*list"),
        (
            {"users__df": pd.DataFrame([[1, 2, 3]], columns=["id", "a", "a"])},
            "users must have columns of different names, got 'a' twice",
        ),
        ({"users__df": pd.DataFrame({"id": [1], "a": [{}]})}, "users.a must be numbers"),
        (
            {"users__df": pd.DataFrame({"id": [1, 2], "a": [[1], [2, 3]]})},
            "users.a must be .* same",
        ),
        ({"orders__fkey_col_to_pkey_table": ["user"]}, "orders must have tables by foreign key"),
    ],
)
def test_errors_of_tables(changes, message):
    with pytest.raises((TypeError, ValueError), match=message):
        from_relbench(tables(**changes))
    with pytest.raises(TypeError, match="database must be tables by name, got int"):
        from_relbench(3)
    with pytest.raises(ValueError, match=r"categorical must be of the columns .*'shops"):
        from_relbench(tables(), categorical="shops.size")


def test_keys_of_two_types_are_told():
    columns = {"id": [7, 9], "age": [np.inf, 1.0], "paid": [Decimal("1.5"), None]}
    columns["born"] = [None, "2020-02-03"]  # decimals of databases are numbers, as dates in text
    users = {"df": pd.DataFrame(columns), "pkey_col": "id"}
    visits = {"df": pd.DataFrame({"user": ["9", "7"]}), "fkey_col_to_pkey_table": {"user": "users"}}
    message = "visits.user: 2 keys are of no row of users; they are .*, those of users int64"
    with pytest.warns(UserWarning, match=message):
        data = from_relbench({"users": users, "visits": visits})
    assert data.report[0] == "users.age: 1 of 2 are infinite"
    np.testing.assert_array_equal(
        data.nodes["users"]["numbers"][:, 1:], [[1.5, np.nan], [np.nan, 2020]]
    )


@pytest.mark.parametrize("dtype", [None, jnp.bfloat16])
def test_encoder_is_its_formula(tmp_path, dtype):
    data = from_relbench(tables())
    for table in data.nodes.values():
        encoder = TableEncoder.of(table, 8, dtype=dtype, rngs=nnx.Rngs(0))
        dense = [np.zeros((len(table["time"]), 0))]
        if "numbers" in table:
            x = table["numbers"]
            dense.append((x - np.nanmean(x, 0)) / np.nanstd(x, 0))
        if "cycles" in table:
            angles = 2 * np.pi * table["cycles"][:, 0]
            dense += [np.sin(angles), np.cos(angles)]
        dense = np.nan_to_num(np.concatenate([*dense, table.get("embeddings", dense[0])], 1))
        want = dense @ np.asarray(encoder.map.kernel[...])
        start = 0
        for column in np.asarray(table.get("categories", np.zeros((len(want), 0), int))).T:
            want = want + np.asarray(encoder.categories[...])[start + 1 + column]
            start += column.max() + 2
        got = encoder(table)
        assert got.dtype == (dtype or jnp.float32)
        np.testing.assert_allclose(
            got.astype(np.float32), want, atol=1e-5 if dtype is None else 0.1
        )
    changed = {**table, "categories": np.array([[99]] * 5)} if "categories" in table else table
    assert np.isfinite(np.asarray(encoder(changed), np.float32)).all()
    with pytest.raises(ValueError, match=r"table\['numbers'\] must have 2 columns, got none"):
        encoder({"time": table["time"]})
    for dtype in (np.float32, np.float64):
        numbers = np.array([[0.1, 1e30], [0.1, 2e30], [0.1, np.inf]], dtype)
        encoder = TableEncoder.of({"numbers": numbers}, 8, rngs=nnx.Rngs(0))
        assert encoder.numbers[0][1] == 1 and np.isfinite(encoder.numbers).all()
    got = encoder({"numbers": np.float32([[0.1, np.inf]])})
    np.testing.assert_array_equal(got, encoder({"numbers": np.full((1, 2), np.nan)}))
    empty = TableEncoder.of({"time": table["time"]}, 8, rngs=nnx.Rngs(0))  # keys alone
    assert not np.asarray(empty({"time": table["time"]})).any()  # the bias


def test_model_reads_no_later_rows(tmp_path):
    """Predictions are those of rows up to the seeds' times, and ages count."""
    rng, data = np.random.default_rng(0), from_relbench(tables())
    graph, rngs = data.graph, nnx.Rngs(0)
    encoders = {name: TableEncoder.of(t, 8, rngs=rngs) for name, t in data.nodes.items()}
    rgcn = RGCN(8, 8, 2, num_relations=2, rngs=rngs)
    model = DatabaseModel(encoders, rgcn, rngs=rngs)
    edge_time = graph.edge_values({key: values["time"] for key, values in data.edges.items()})

    def predict(model, tables, time):
        times = {"edge_time": edge_time, "seed_time": np.full(1, time, np.int32)}
        blocks = sample_neighbors(graph, {"users": [1]}, (9, 9), jax.random.key(0), **times)
        return model(blocks, tables, times["seed_time"], deterministic=True)

    early, late = sorted(SECOND.values())
    later = jax.tree.map(np.copy, data.nodes)
    later["orders"]["numbers"][0] += rng.normal()  # the row of the later time
    before, after = predict(model, data.nodes, early), predict(model, data.nodes, late)
    np.testing.assert_array_equal(predict(model, later, early), before)
    assert not np.allclose(predict(model, later, late), after)
    assert not np.allclose(predict(model, data.nodes, late + 10**7), after)  # ages
    jax_gnn.save(tmp_path / "model", model)
    loaded = jax_gnn.load(tmp_path / "model").model
    np.testing.assert_array_equal(predict(loaded, data.nodes, late), after)
    blocks = sample_neighbors(graph, {"users": [1]}, (9,), jax.random.key(0))
    with pytest.raises(ValueError, match="seed_time must be None unless"):
        model(blocks, data.nodes, np.full(1, late))
    times = {"edge_time": edge_time, "seed_time": np.full(2, late, np.int32)}
    blocks = sample_neighbors(graph, {"users": [0, 1]}, (9, 9), jax.random.key(0), **times)
    with pytest.raises(ValueError, match=r"seed_time must have shape \(num_seeds,\) = \(2,\), got"):
        model(blocks, data.nodes, np.full(1, late))
    with pytest.raises(ValueError, match="tables lacks the type 'orders'"):
        model(blocks, {"users": data.nodes["users"]})
    with pytest.raises(ValueError, match=r"must have out_features = 8 of the model, got 4"):
        DatabaseModel({"a": TableEncoder(4, num_cycles=1, rngs=rngs)}, rgcn, rngs=rngs)
    with pytest.raises(TypeError, match="blocks must be"):
        model(graph, data.nodes)
