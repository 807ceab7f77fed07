"""Configurations: every bad value is refused with its name, its value and a remedy; names, types and hashes hold."""

from __future__ import annotations

import dataclasses
from typing import get_args

import pytest

from lldsim.config import PRESETS, RunConfig, field_specs, from_mapping, matched_twin, preset
from lldsim.errors import ConfigError


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"llds_coeff": 0.2}, "did you mean 'llds_coef'"),
        ({"seed": "three"}, "seed='three': expected an integer"),
        ({"seed": 1.5}, "expected an integer"),
        ({"seed": True}, "expected an integer"),
        ({"gate": "actoin"}, "expected one of token, response, action"),
        ({"std_normalize": "yes"}, "expected true or false"),
        ({"learning_rate": float("nan")}, "expected a number"),
        ({"recovery": "1,x"}, "expected a list of numbers"),
        ({"temperature": 0.0}, "temperature=0.0: must lie in"),
        ({"group_size": 1}, "group_size=1: must lie in"),
        ({"recovery": [1.0, 0.5]}, "drift levels"),
        ({"recovery": [1.0, 0.5, 0.4, 1.5]}, "every level must lie in"),
        ({"vocab_size": 12}, "set vocab_size to at least 20"),
        ({"p_search": 0.9}, "exceed 1"),
        ({"updates_per_rollout": 7}, "does not divide the 80 responses"),
        ({"llds_coef": 0.2, "updates_per_rollout": 1}, "the gate can never open"),
        ({"ratio_to": "sampler", "tis_cap": 2.0}, "same gap twice"),
    ],
)
def test_bad_values_are_refused_with_a_remedy(changes, message):
    with pytest.raises(ConfigError, match=message):
        RunConfig().replace(**changes)


def test_strings_from_the_command_line_become_the_fields_types():
    config = RunConfig().replace(seed="3", learning_rate="1e1", std_normalize="false", dual_clip="none", tis_cap="2")
    assert config.trainer.seed == 3
    assert config.trainer.learning_rate == 10.0
    assert config.trainer.std_normalize is False
    assert config.objective.dual_clip is None
    assert config.objective.tis_cap == 2.0
    assert RunConfig().replace(recovery="1,.5,.2,.1").world.recovery == (1.0, 0.5, 0.2, 0.1)


def test_inert_llds_is_allowed_only_on_request():
    config = RunConfig().replace(llds_coef=0.2, updates_per_rollout=1, allow_inert_llds=True)
    assert config.trainer.updates_per_rollout == 1


def another(base, spec):
    """Return `base` with one field at some other valid value."""
    value = getattr(getattr(base, spec.part), spec.name)
    options = [x for hint in (spec.type, *get_args(spec.type)) for x in get_args(hint)]
    numbers = [value + 1, value - 1, value * 2, value / 2] if isinstance(value, int | float) else []
    tuples = [(*value[:-1], 0.05)] if isinstance(value, tuple) else []
    for candidate in [*options, *numbers, *tuples, not value, 0.05, 2.0, 3]:
        try:
            changed = base.replace(**{spec.name: candidate})
        except ConfigError:
            continue
        if changed != base:
            return changed
    raise AssertionError(f"found no other valid value for {spec.name}")


def test_hash_depends_on_every_field_and_on_nothing_else():
    base = RunConfig()
    changed = [another(base, spec) for spec in field_specs().values()]
    assert len({config.config_hash() for config in [base, *changed]}) == len(field_specs()) + 1
    assert base.config_hash() == RunConfig().replace(seed=base.trainer.seed).config_hash()


def test_field_names_are_unique_over_the_three_parts():
    parts = (getattr(RunConfig(), part) for part in ("world", "objective", "trainer"))
    names = [field.name for part in parts for field in dataclasses.fields(part)]
    assert sorted(names) == sorted(field_specs())


def test_presets_exist_and_unknown_ones_are_suggested():
    for name in PRESETS:
        assert isinstance(preset(name), RunConfig)
    with pytest.raises(ConfigError, match="did you mean 'spiral'"):
        preset("spirall")


def test_null_preset_differs_from_spiral_only_in_similarity():
    spiral, null = preset("spiral").flat(), preset("null").flat()
    changed = {name for name in spiral if spiral[name] != null[name]}
    assert changed == {"position_similarity", "anisotropy", "feedback_similarity", "garbage_similarity"}


def test_from_mapping_starts_from_its_preset_and_refuses_unknown_keys():
    config = from_mapping({"preset": "null", "seed": 4})
    assert config.world.position_similarity == 0
    assert config.trainer.seed == 4
    with pytest.raises(ConfigError, match="did you mean 'seed'"):
        from_mapping({"sed": 4})


def test_matched_twin_moves_the_sharpness_from_the_sampler_to_the_base_policy():
    config = preset("spiral")
    twin = matched_twin(config)
    assert twin.trainer.temperature == 1.0
    assert twin.world.base_power == pytest.approx(1 / config.trainer.temperature)
    assert twin.trainer.learning_rate == pytest.approx(config.trainer.learning_rate / config.trainer.temperature)
