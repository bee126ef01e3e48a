"""Owns the sampler of `uniference search`: Optuna is asked for points and told their objective values.

The command starts this module as a process and talks to it in JSON, one object per line. The first line describes the
search. `{"ask": COUNT}` is answered with COUNT points. `{"tell": [...]}` has the outcomes of these points, in the same
order. `{"enqueue": POINT}` sets the next point that is asked for. A point has one share from 0 to 1 for each parameter;
the command maps shares to the parameters' values and carries out the trials.

Equal searches ask for equal points: all randomness follows from the seed.
"""

import json
import sys
from typing import Any

import optuna

# Number of points that are drawn before the sampler learns from them (Optuna's own default).
STARTUP = 10
# Objective value of points whose trial failed. A failed trial also violates a constraint, so it ranks behind all
# others.
FAILED = 1e300


def main() -> None:
    """Answers requests until the command closes its end of the pipe."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    wanted = json.loads(sys.stdin.readline())
    parameters: list[dict[str, Any]] = wanted["parameters"]
    distributions = {parameter["name"]: _distribution(parameter) for parameter in parameters}
    sampler = optuna.samplers.TPESampler(seed=wanted["seed"], multivariate=True, n_startup_trials=STARTUP)
    study = optuna.create_study(directions=wanted["directions"], sampler=sampler)
    asked: list[optuna.Trial] = []
    for line in sys.stdin:
        request = json.loads(line)
        if "enqueue" in request:
            pairs = zip(parameters, request["enqueue"], strict=True)
            study.enqueue_trial({parameter["name"]: _value(parameter, share) for parameter, share in pairs})
        elif "ask" in request:
            asked = [study.ask(distributions) for _ in range(request["ask"])]
            points = [
                [_share(parameter, trial.params[parameter["name"]]) for parameter in parameters] for trial in asked
            ]
            print(json.dumps({"points": points}), flush=True)
        else:
            for trial, told in zip(asked, request["tell"], strict=True):
                for number, violation in enumerate(told["violations"]):
                    trial.set_constraint(str(number), violation)
                study.tell(
                    trial, told["values"] or [FAILED if d == "minimize" else -FAILED for d in wanted["directions"]]
                )


def _distribution(parameter: dict[str, Any]) -> optuna.distributions.BaseDistribution:
    """Numbers have an order that the sampler can learn from; names have none."""
    if parameter["kind"] == "interval":
        return optuna.distributions.FloatDistribution(0.0, 1.0)
    if parameter["kind"] == "ordered":
        return optuna.distributions.IntDistribution(0, parameter["count"] - 1)
    return optuna.distributions.CategoricalDistribution(range(parameter["count"]))


def _share(parameter: dict[str, Any], value: float) -> float:
    return value if parameter["kind"] == "interval" else (value + 0.5) / parameter["count"]


def _value(parameter: dict[str, Any], share: float) -> float:
    return share if parameter["kind"] == "interval" else int(share * parameter["count"])


if __name__ == "__main__":
    main()
