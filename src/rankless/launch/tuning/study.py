"""Which values a trial tries, given those before it: Optuna's tree-structured Parzen estimator.

The sampler is seeded by the number of the trial, and Optuna's study is made again from what was recorded. So
a search that is resumed tries what it would have tried, and no file of Optuna's is needed.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from rankless.extras import needed
from rankless.launch.tuning.record import Search, Trial
from rankless.launch.tuning.space import Range

_RANDOM = 5
"""Trials before the estimator has something to estimate from."""


def suggestion(search: Search, trials: Sequence[Trial], number: int) -> dict[str, Any]:
    """Return the parameters of a trial.

    Args:
        search: what is searched.
        trials: all before it.
        number: of the trial, from 1.
    """
    optuna = needed("optuna", "tune", "rankless tune")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    distributions = {key: _distribution(optuna, one) for key, one in search.space.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about its experimental parts
        sampler = optuna.samplers.TPESampler(
            seed=search.seed * 100_003 + number, n_startup_trials=_RANDOM, multivariate=True
        )
        direction = "minimize" if search.lower_is_better else "maximize"
        study = optuna.create_study(sampler=sampler, direction=direction)
        for trial in trials:
            # The recipe itself may lie outside of the space.
            if trial.score is not None and set(trial.params) == set(distributions):
                done = optuna.trial.create_trial(
                    params=dict(trial.params), distributions=distributions, value=trial.score
                )
                study.add_trial(done)
        params: dict[str, Any] = study.ask(distributions).params
    return params


def _distribution(optuna: Any, one: Range) -> Any:
    if one.choices:
        return optuna.distributions.CategoricalDistribution(one.choices)
    if one.whole:
        return optuna.distributions.IntDistribution(int(one.low or 0), int(one.high or 0))
    return optuna.distributions.FloatDistribution(one.low, one.high, log=one.is_logarithmic)
