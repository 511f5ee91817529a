"""A fuzzer of arguments: random calls of all public functions, against references in float64.

    python tests/fuzz/arguments.py --sets 100000 --processes 16

Each set of arguments is a number: ``--only N`` with the seed of a finding repeats it. Right
arguments must give what a plain reference gives (``argument_cases.py``), in shape, dtype and value
to a bound that follows from the roundings (``balls.py``), under eager execution, ``jit``, ``vjp``,
``jvp`` and ``vmap``, with 64-bit types and strict promotion on and off; rows that must not be read
hold NaN or infinity. Wrong arguments must raise a TypeError or ValueError that names them and says
what was given (``../argument_calls.py``). Warnings are errors. Sets run in child processes, so that
a crash or a hang is a finding too.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import queue
import random as stdlib_random
import re
import subprocess
import sys
import threading
import time
import traceback
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from argument_cases import FAMILIES, Case, Mode, Random
from balls import Ball, Dual, disagreement, rounding, unit

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from argument_calls import CALLS, fault, function_of, ways

BATCH = 1000  # sets of a child process, which share compiled programs
WRONG = 0.3  # share of sets with a wrong argument
HANG = 300  # seconds without a set being done
TRANSFORMS = (
    *("eager", "eager", "jit", "jit"),
    *("vjp", "vjp", "eager_vjp", "jvp", "eager_jvp"),
    *("vmap", "vmap_vjp"),
)


# --- One set -------------------------------------------------------------------------------------


class Batch:
    """The cases of a batch, which its sets draw from."""

    def __init__(self, seed: int, number: int, size: int, implementation: str | None) -> None:
        self.seed, self.number, self.size = seed, number, size
        self.platform = jax.default_backend()
        self.implementation = implementation
        self.cases: dict[int, Any] = {}
        self.families = [family for family, weight in FAMILIES for _ in range(weight)]

    def mode(self, random: Random) -> Any:
        kernels = "cuda" if self.platform == "gpu" else "cpu"
        chosen = self.implementation or random.choice([None, kernels, "xla"])
        if chosen not in (None, "xla", kernels):
            raise SystemExit(f"implementation {chosen} does not run on this machine")
        return Mode(
            x64=random.chance(0.5),
            strict=random.chance(0.4),
            transform=random.choice(TRANSFORMS),
            implementation=chosen,
            by_context=random.chance(0.3),
            platform=self.platform,
        )

    def case(self, which: int) -> Any:
        if which not in self.cases:
            random = Random(self.seed, self.number, 1, which)
            mode = self.mode(random)
            self.cases[which] = random.choice(self.families)(random, mode), mode
        return self.cases[which]

    def run(self, index: int) -> tuple[str, str, str | None]:
        """Gives the function, the call, and what is wrong with its end."""
        random = Random(self.seed, self.number, 2, index)
        if random.chance(WRONG):
            text, wrong = wrong_call(random, self.mode(random))
            return function_of(text.split("(")[0]), text, wrong
        case, mode = self.case(random.integer(0, self.size))
        text = f"{case.function} {case.options} {mode}"
        try:
            with mode.contexts():
                wrong = right_call(case, mode, random)
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)
            where = [f"{os.path.basename(f.filename)}:{f.lineno}" for f in frames]
            where = [w for w in where if not w.startswith(("traceback_util", "pjit", "api"))]
            message = " ".join(str(error).split())[:300]
            wrong = f"{type(error).__name__}: {message} ({' '.join(where[-6:])})"
        return case.function, text, wrong


def wrong_call(random: Random, mode: Mode) -> tuple[str, str | None]:
    """Makes one: what it is, and what is wrong with how it ends; None if nothing is."""
    name = random.choice(list(CALLS))
    function, arguments, spoilt = CALLS[name]
    argument = random.choice(spoilt or list(arguments))
    what, spoil = random.choice(ways(name, argument))
    with mode.contexts():
        given = {**arguments, argument: spoil(arguments[argument])}
        traced = {
            key: x
            for key, x in given.items()
            if isinstance(x, np.ndarray | jax.Array) and getattr(x.dtype, "kind", "key") in "iufcb"
        }
        host_only = "." in name or name == "implementation"
        under_jit = mode.jitted and (argument in traced or random.chance(0.3)) and not host_only
        text = f"{name}({argument}={_show(given[argument])}: {what}{', traced' * under_jit})"
        try:
            if under_jit:
                rest = {key: x for key, x in given.items() if key not in traced}
                result = jax.eval_shape(lambda arrays: function(**rest, **arrays), traced)
            else:
                result = function(**given)
        except Exception as error:
            return text, fault(error, argument)
    return text, f"no error, but {str(result)[:120]}"


def _show(value: Any) -> str:
    if isinstance(value, np.ndarray | jax.Array):
        return f"{value.dtype}{list(value.shape)}"
    return repr(value)[:60]


def right_call(case: Case, mode: Mode, random: Random) -> str | None:
    """Calls, and compares with the reference."""
    ids, known = case.indices(random)
    values = case.values(random, ids, known)
    is_float = all(x.dtype.kind not in "iub" for x in values.values())
    derivable = case.differentiable and is_float and values
    transform = mode.transform
    if not derivable and mode.derives:
        transform = "vmap" if "vmap" in transform else "jit" if mode.jitted else "eager"
    if "vmap" in transform and not case.vmappable:
        transform = transform.removeprefix("vmap_") if derivable and mode.derives else "jit"
        transform = "jit" if transform == "vmap" else transform
    problem = np.random.default_rng(random.integer(0, 2**32))
    runner = {
        "eager": _forward,
        "jit": _forward,
        "vjp": _vjp,
        "eager_vjp": _vjp,
        "jvp": _jvp,
        "eager_jvp": _jvp,
        "vmap": _vmap,
        "vmap_vjp": _vmap,
    }[transform]
    return runner(case, transform, random, ids, values, known, problem)


def _compiled(case: Case, name: str, function: Any, jitted: bool) -> Any:
    if name not in case.state:
        case.state[name] = jax.jit(function) if jitted else function
    return case.state[name]


def _arrays(random: Random, operands: dict[str, Any], lists: bool) -> dict[str, Any]:
    """Operands as arrays of numpy, of JAX, or as lists."""
    import jax

    def dress(x: Any) -> Any:
        if not isinstance(x, np.ndarray):
            return x
        way = random.integer(0, 4)
        narrows = jax.dtypes.canonicalize_dtype(x.dtype) != x.dtype
        if way == 0 and not narrows:
            return jnp.asarray(x)
        default = x.dtype.kind in "iu" or x.dtype == jnp.zeros(0).dtype
        if way == 1 and lists and x.size and x.ndim and default:
            return x.tolist()
        return x

    return {name: dress(x) for name, x in operands.items()}


def _forward(
    case: Case, transform: str, random: Random, ids: Any, values: Any, known: Any, rng: Any
) -> str | None:
    jitted = transform == "jit"
    function = _compiled(case, transform, lambda operands: case.call(**operands), jitted)
    is_float = {name: x.dtype.kind not in "iub" for name, x in values.items()}
    # A list of integers would be of another dtype; lists of ids are ids all the same.
    lists = case.lists and not jitted and all(is_float.values())
    operands = _arrays(random, ids | values, lists)
    actual = function(operands)
    return compare(actual, _result(case, ids, values, known), case.dtype, "result")


def _result(case: Case, ids: Any, values: Any, known: Any) -> Any:
    """The reference's."""
    with rounding(case.accumulator, case.accumulator, case.product_unit):
        exact = {
            n: x if case.raw and x.dtype.kind in "iub" else Dual(_wide(x))
            for n, x in values.items()
        }
        return case.reference(exact, ids, known)


def _wide(x: Any) -> Any:
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def compare(actual: Any, want: Any, dtype: Any, name: str) -> str | None:
    """What differs; None if nothing does."""
    if callable(want):
        return want(actual)
    if isinstance(want, list):
        if len(actual) != len(want):
            return f"{len(actual)} results, want {len(want)}"
        results = enumerate(zip(actual, want, strict=True))
        return next(
            (w for i, (a, b) in results if (w := compare(a, b, dtype, f"{name} {i}"))), None
        )
    if not isinstance(actual, jax.Array):
        return f"{name} is a {type(actual).__name__}"
    expected = np.dtype(dtype) if isinstance(want, Dual) else want.dtype
    if actual.dtype != expected:
        return f"{name} has dtype {actual.dtype}, want {expected}"
    if actual.shape != want.shape:
        return f"{name} has shape {actual.shape}, want {want.shape}"
    if isinstance(want, Dual):
        wrong = disagreement(actual, want.ball, dtype)
        return wrong and f"{name} {wrong}"
    bad = np.argwhere(np.asarray(actual) != want)
    if len(bad):
        where = tuple(bad[0])
        return f"{name} at {where}: {np.asarray(actual)[where]}, want {want[where]}"
    return None


def _derivative_format(case: Case) -> Any:
    """Half types may be rounded to themselves at each step of a derivative."""
    return case.dtype if case.dtype.name in ("float16", "bfloat16") else case.accumulator


def _coarsest(case: Case, values: dict[str, Any]) -> Any:
    dtypes = [_derivative_format(case), *(x.dtype for x in values.values())]
    return max(dtypes, key=unit)


def _reference(
    case: Case,
    values: Any,
    tangents: dict[str, Any],
    ids: Any,
    known: Any,
) -> Any:
    """Duals; with a tangent of shape ``(*shape, K)`` for each value."""
    each = _coarsest(case, values)
    with rounding(each, case.accumulator, case.product_unit):
        duals = {
            name: Dual(_wide(x), None, Ball(t := tangents[name], np.zeros(t.shape)))
            for name, x in values.items()
        }
        want = case.reference(duals, ids, known)
    return want if isinstance(want, list) else [want]


def _seen(values: dict[str, Any]) -> dict[str, Any]:
    """As JAX takes them: 64 bits become 32 where they are not enabled."""
    return {n: x.astype(jax.dtypes.canonicalize_dtype(x.dtype)) for n, x in values.items()}


def _numbers(rng: Any, shape: Any, dtype: Any) -> Any:
    x = rng.integers(-4, 5, shape) / 2 if rng.random() < 0.5 else rng.normal(size=shape)
    if dtype.kind == "c":
        x = x + 1j * rng.normal(size=shape)
    return x.astype(dtype)


def _bigger(case: Case, values: dict[str, Any]) -> bool:
    """Whether there are too many directions for a reference of all of them."""
    return sum(x.size for x in values.values()) > 400


def _jvp(
    case: Case, transform: str, random: Random, ids: Any, values: Any, known: Any, rng: Any
) -> str | None:
    import jax

    values = _seen(values)
    tangents = {n: _numbers(rng, x.shape, x.dtype) for n, x in values.items()}
    for name, x in values.items():  # nor are tangents of what must not be read
        tangents[name] = np.where(np.isfinite(_wide(x)), tangents[name], x).astype(x.dtype)

    def function(ids: Any, values: Any, tangents: Any) -> Any:
        return jax.jvp(lambda values: case.call(**ids, **values), (values,), (tangents,))

    call = _compiled(case, transform, function, transform == "jvp")
    _, actual = call(ids, values, tangents)
    # Each operand's part may be computed, and rounded, by itself.
    apart = np.eye(len(tangents), dtype=bool)
    directions = {
        n: np.where(apart[k], _wide(t)[..., None], 0) for k, (n, t) in enumerate(tangents.items())
    }
    want = _reference(case, values, directions, ids, known)
    actual = actual if isinstance(actual, list) else [actual]
    with rounding(_coarsest(case, values), case.accumulator, case.product_unit):
        wanted = [_tangent_dual(dual) for dual in want]
    return compare(actual, wanted, case.dtype, "tangent")


def _tangent_dual(dual: Any) -> Any:
    """The sum of all directions."""
    total = Dual(np.zeros(dual.shape))
    if dual.tangent is not None:
        for k in range(dual.tangent.value.shape[-1]):
            total = total + Dual(*(x[..., k] for x in dual.tangent))
    return total


def _one_hot(values: dict[str, Any]) -> dict[str, Any]:
    """A direction for each number."""
    total = sum(x.size for x in values.values())
    result, start = {}, 0
    for name, x in values.items():
        each = np.zeros((x.size, total), np.complex128 if x.dtype.kind == "c" else np.float64)
        each[np.arange(x.size), start + np.arange(x.size)] = 1
        result[name] = each.reshape(*x.shape, total)
        start += x.size
    return result


def _pulled(case: Case, values: Any, ids: Any, known: Any, cts: list[Any]) -> dict[str, Any]:
    """The reference's gradients, as Duals."""
    want = _reference(case, values, _one_hot(values), ids, known)
    total = Dual(np.zeros(sum(x.size for x in values.values())))
    with rounding(_coarsest(case, values), case.accumulator, case.product_unit):
        for dual, ct in zip(want, cts, strict=True):
            if dual.tangent is not None:
                total = total + Dual(*dual.pull(_wide(ct)))
    result, start = {}, 0
    for name, x in values.items():
        part = total[start : start + x.size]
        if x.dtype.kind != "c":  # converted on the way
            part = part.linear(np.real)
        result[name] = part.reshape(*x.shape)
        start += x.size
    return result


def _shapes(case: Case, ids: Any, values: Any) -> list[Any]:
    if "shapes" not in case.state:
        shapes = jax.eval_shape(lambda i, v: case.call(**i, **v), ids, values)
        case.state["shapes"] = shapes if isinstance(shapes, list) else [shapes]
    return case.state["shapes"]


def _grad_function(case: Case) -> Any:
    def function(ids: Any, values: Any, cts: Any) -> Any:
        def listed(values: Any) -> Any:
            result = case.call(**ids, **values)
            return result if isinstance(result, list) else [result]

        return jax.vjp(listed, values)[1](jax.tree.map(jnp.asarray, cts))[0]

    return function


def _compare_gradients(actual: Any, want: Any, values: Any) -> str | None:
    for name, x in values.items():
        wrong = compare(actual[name], want[name], x.dtype, f"gradient to {name}")
        if wrong:
            return wrong
    return None


def _vjp(
    case: Case, transform: str, random: Random, ids: Any, values: Any, known: Any, rng: Any
) -> str | None:
    values = _seen(values)
    if _bigger(case, values):
        return _jvp(case, transform.replace("vjp", "jvp"), random, ids, values, known, rng)
    cts = [_numbers(rng, s.shape, s.dtype) for s in _shapes(case, ids, values)]
    call = _compiled(case, transform, _grad_function(case), transform == "vjp")
    actual = call(ids, values, cts)
    return _compare_gradients(actual, _pulled(case, values, ids, known, cts), values)


def _vmap(
    case: Case, transform: str, random: Random, ids: Any, values: Any, known: Any, rng: Any
) -> str | None:
    gradients = transform == "vmap_vjp" and not _bigger(case, values)
    drawn = [(ids, _seen(values), known)]
    which = case.state.setdefault("batched", random.choice(["all", "values", "indices"]))
    if not values or not ids:
        which = "all"
    if which == "values":  # some of them
        names = case.state.setdefault(
            "names", [n for n in values if random.chance(0.6)] or [next(iter(values))]
        )
        more = _seen(case.values(random, ids, known))
        drawn.append((ids, {n: more[n] if n in names else drawn[0][1][n] for n in values}, known))
        axes = ({n: None for n in ids}, {n: 0 if n in names else None for n in values})
    else:
        other_ids, other_known = case.indices(random)
        more = _seen(case.values(random, other_ids, other_known))
        axes = ({n: 0 for n in ids}, {n: 0 for n in values})
        if which == "indices":  # the values of one, of which all may be read
            finite = {
                n: x if x.dtype.kind in "iub" else np.where(np.isfinite(_wide(x)), x, 1)
                for n, x in drawn[0][1].items()
            }
            more = {n: x.astype(drawn[0][1][n].dtype) for n, x in finite.items()}
            drawn[0] = (ids, more, known)
            axes = (axes[0], {n: None for n in values})
        drawn.append((other_ids, more, other_known))

    def stack(part: int) -> Any:
        return {
            n: jax.tree.map(lambda *x: np.stack(x), *(d[part][n] for d in drawn))
            if axes[part][n] == 0
            else drawn[0][part][n]
            for n in drawn[0][part]
        }

    operands: tuple[Any, ...] = (stack(0), stack(1))
    if gradients:
        shapes = _shapes(case, ids, drawn[0][1])
        cts = [[_numbers(rng, s.shape, s.dtype) for s in shapes] for _ in drawn]
        operands = (*operands, [np.stack(x) for x in zip(*cts, strict=True)])
        function: Any = jax.vmap(_grad_function(case), in_axes=(*axes, 0))
    else:
        function = jax.vmap(lambda i, v: case.call(**i, **v), in_axes=axes)
    if random.chance(0.05):  # a batch of none
        which += " of none"
        operands = tuple(
            {n: jax.tree.map(lambda x: x[:0], x) if axis[n] == 0 else x for n, x in each.items()}
            if isinstance(axis, dict)
            else [x[:0] for x in each]
            for each, axis in zip(operands, (*axes, 0), strict=False)
        )
        drawn = []
    actual = _compiled(case, transform + which, function, True)(*operands)
    if not drawn and any(x.shape[0] for x in jax.tree.leaves(actual)):
        return f"{which}: shapes {jax.tree.map(jnp.shape, actual)}"
    for i, (ids, values, known) in enumerate(drawn):
        one = jax.tree.map(lambda x, i=i: x[i], actual)
        if gradients:
            wrong = _compare_gradients(one, _pulled(case, values, ids, known, cts[i]), values)
        else:
            wrong = compare(one, _result(case, ids, values, known), case.dtype, "result")
        if wrong:
            return f"batch {i} ({which}): {wrong}"
    return None


# --- Child processes -----------------------------------------------------------------------------


def child(options: argparse.Namespace) -> None:
    """Runs sets of one batch, and prints a line for each."""
    warnings.simplefilter("error")
    first, stop = options.child
    batch = Batch(options.seed, first // BATCH, options.cases, options.implementation)
    for index in range(first, stop):
        print(json.dumps({"start": index}), flush=True)
        function, call, wrong = batch.run(index)
        done = {"done": index, "function": function}
        if wrong:
            done |= {"call": call, "wrong": wrong}
        print(json.dumps(done), flush=True)


class Fuzzer:
    """Runs sets in child processes, and collects what is wrong."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.counts: collections.Counter[str] = collections.Counter()
        self.findings: dict[str, list[dict[str, Any]]] = {}
        self.lock = threading.Lock()
        self.jobs: queue.Queue[tuple[int, int]] = queue.Queue()
        self.deadline = time.monotonic() + options.seconds if options.seconds else None

    def run(self) -> int:
        """All sets; gives the number of different findings."""
        if self.options.only is not None:
            self.jobs.put((self.options.only, self.options.only + 1))
        for first in range(0, self.options.sets if self.options.only is None else 0, BATCH):
            self.jobs.put((first, min(first + BATCH, self.options.sets)))
        start = time.monotonic()
        workers = [threading.Thread(target=self._work) for _ in range(self.options.processes)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        sets, seconds = sum(self.counts.values()), time.monotonic() - start
        for name, count in sorted(self.counts.items()):
            print(f"{count:8} {name}")
        print(
            f"{sets} sets, seed {self.options.seed}, {seconds:.0f} s, "
            f"{sets / seconds:.1f} sets/s with {self.options.processes} processes; "
            f"{len(self.findings)} findings"
        )
        for key, found in sorted(self.findings.items()):
            print(f"\n{len(found)} × {key}")
            for each in found[:2]:
                print(f"  {each['call']}\n    {each['wrong']}")
                again = " ".join([*self._again, "--only", str(each["done"])])
                print(f"    python tests/fuzz/arguments.py {again}")
        return len(self.findings)

    @property
    def _again(self) -> list[str]:
        """What a set depends on."""
        options = self.options
        chosen = ["--implementation", options.implementation] if options.implementation else []
        return ["--seed", str(options.seed), "--cases", str(options.cases), *chosen]

    def _work(self) -> None:
        while True:
            try:
                first, stop = self.jobs.get_nowait()
            except queue.Empty:
                return
            while first < stop and not self._late():
                first = self._child(first, stop)

    def _late(self) -> bool:
        return self.deadline is not None and time.monotonic() > self.deadline

    def _child(self, first: int, stop: int) -> int:
        """Runs a child; gives the set to go on with."""
        arguments = [*self._again, "--child", str(first), str(stop)]
        process = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        lines: queue.Queue[str | None] = queue.Queue()
        errors: list[str] = []
        threads = [
            threading.Thread(
                target=lambda: [*map(lines.put, process.stdout or []), lines.put(None)]
            ),
            threading.Thread(target=lambda: errors.extend(process.stderr or [])),
        ]
        for thread in threads:
            thread.start()
        started, done = first, first - 1
        wrong = None
        while True:
            try:
                line = lines.get(timeout=HANG)
            except queue.Empty:
                wrong = f"hang: nothing for {HANG} s"
                break
            if line is None:
                break
            try:
                record = json.loads(line)
            except ValueError:
                continue  # printed by something else
            if "start" in record:
                started = record["start"]
                continue
            done = record["done"]
            self._note(record)
            if self._late():
                break
        early = process.poll() is None and not wrong and done + 1 < stop and self._late()
        if wrong or early:
            process.kill()
        process.wait()
        for thread in threads:
            thread.join()
        if wrong is None and not early and (process.returncode or done + 1 < stop):
            tail = " | ".join(line.strip() for line in errors[-4:])
            wrong = f"crash: exit status {process.returncode}: {tail[:600]}"
        if wrong:
            self._note({"done": started, "function": "process", "call": "?", "wrong": wrong})
            return started + 1
        return stop if not early else done + 1

    def _note(self, record: dict[str, Any]) -> None:
        with self.lock:
            self.counts[record["function"]] += 1
            if "wrong" in record:
                key = _key(record["function"], record["wrong"])
                new = key not in self.findings
                self.findings.setdefault(key, []).append(record)
                if new:
                    print(
                        f"set {record['done']}: {record['call']}\n  {record['wrong']}", flush=True
                    )


def _key(function: str, wrong: str) -> str:
    """What makes two findings one."""
    text = re.sub(r"0x[0-9a-f]+|[-+]?\d+(\.\d+)?(e[-+]?\d+)?|\[[^]]*\]|\([^)]*\)", "#", wrong)
    return f"{function}: {text[:120]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sets", type=int, default=1000, help="how many")
    parser.add_argument("--seed", type=int, help="of the first; fresh by default")
    parser.add_argument("--seconds", type=float, help="stop after so many")
    parser.add_argument("--implementation", choices=["cpu", "cuda", "xla"], help="only this one")
    parser.add_argument("--cases", type=int, default=100, help="of right calls, in 1000 sets")
    parser.add_argument("--processes", type=int, default=1, help="run side by side")
    parser.add_argument("--only", type=int, help="repeat this set")
    parser.add_argument("--child", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.seed is None:
        options.seed = stdlib_random.SystemRandom().randrange(2**32)
    if options.child:
        child(options)
        return 0
    # Children compile in a third of the time, as tests do: see conftest.py.
    os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    if jax.__version_info__ < (0, 11):
        os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false")
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    return 1 if Fuzzer(options).run() else 0


if __name__ == "__main__":
    sys.exit(main())
