"""Layers are declared by typed fields, which constructors, signatures and models read."""

import dataclasses
import functools
import inspect
import re

import pytest
from flax import nnx
from layer_cases import LAYERS

import flax_layers
from flax_layers._declaration import Layer, LinearOptions, field, option_names, option_values

CLASSES = {
    name: getattr(flax_layers, name)
    for name in flax_layers.__all__
    if inspect.isclass(getattr(flax_layers, name))
}
DECLARED = [
    name
    for name, kind in CLASSES.items()
    if issubclass(kind, Layer) and name not in ("AttentionOptions", "LinearOptions")
]
MODELS = [name for name in DECLARED if hasattr(CLASSES[name], "convolution")]
# Options that a model sets for each convolution.
SET_BY_MODEL = {"UniGCNII": {"layer"}}


@pytest.mark.parametrize("name", MODELS)
def test_options_of_a_convolution_are_fields_of_its_model(name):
    model = CLASSES[name]
    options = set(option_names(model.convolution)) - SET_BY_MODEL.get(name, set())
    assert options <= set(option_names(model))
    types = {f.name: f.type for f in dataclasses.fields(model)}
    for f in dataclasses.fields(model.convolution):
        if f.name in options:
            assert types[f.name] == f.type, f.name


@pytest.mark.parametrize("name", DECLARED)
def test_arguments_are_documented(name):
    constructor = CLASSES[name].__init__
    for argument in [*inspect.signature(constructor).parameters][1:]:
        assert re.search(rf"\n +(\*\*)?{argument}: ", constructor.__doc__), argument


def test_models_hand_their_options_on():
    for case in LAYERS.values():
        if case.kind is None or not issubclass(case.kind, flax_layers.Stack):
            continue
        model = nnx.eval_shape(functools.partial(case.make, "float32"))  # options need no arrays
        values = option_values(model)
        for conv in model.convolutions[:1]:
            for name, value in option_values(conv).items():
                if name in values and name not in ("in_features", "out_features"):
                    is_overridden = (case.kind, name) == (flax_layers.UniGCNII, "use_bias")
                    is_last = name == "heads" and model.num_layers == 1
                    assert value == values[name] or is_overridden or is_last, (case.kind, name)


class Scaled(LinearOptions):
    """Layer of a user.

    Attributes:
        size: Number of scales.
        initial: Initial value.
    """

    size: int = field(kw_only=False)
    initial: float = 1.0

    def _make_parameters(self, factory):
        self.scale = factory.kernel(1, self.size, init=nnx.initializers.constant(self.initial))


class DoublyScaled(Scaled):
    initial: float = 2.0


def test_fields_are_inherited():
    layer = DoublyScaled(3, rngs=nnx.Rngs(0))
    assert layer.scale[...].tolist() == [[2, 2, 2]]
    assert option_values(layer)["initial"] == 2
    assert "initial: Initial value." in DoublyScaled.__init__.__doc__
    assert inspect.signature(DoublyScaled.__init__).parameters["rngs"].annotation == "nnx.Rngs"
    with pytest.raises(TypeError, match="unexpected keyword argument 'width'"):
        Scaled(3, width=2, rngs=nnx.Rngs(0))
    with pytest.raises(TypeError, match="rngs"):
        Scaled(3)
