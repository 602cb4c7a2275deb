"""Constraints, multipliers and models given what they cannot take: by error and its words, the expressions."""

EXPRESSIONS: dict[type[Exception], dict[str, list[str]]] = {
    TypeError: {
        "step_size must be known beforehand": ["jax.jit(lambda a: uj.attention(step_size=a))(0.5)"],
        "alpha must be a number, or an array": ['uj.descent_constraints("0.2")'],
        "level must be a number, or an array": ['uj.tail_mean("0.5")'],
        "reference must be a number or None": ['uj.descent_constraints(0.2, reference="f0")'],
        "layer_losses must be an array of numbers": ['uj.descent_constraints(0.2)("losses")'],
        "multipliers must be an array of numbers": ["uj.lagrangian(1.0, ones(3), None)"],
        "optimizer must be an optax gradient transformation such": [
            "uj.dual_ascent(None)",
            'uj.dual_ascent({"a": 0.1})',
        ],
        "cap must be a number, or an array of numbers": ['uj.dual_ascent(sgd, cap="high")'],
        "violations must be an array of numbers": ['uj.dual_ascent(sgd).init("3")'],
        "state must be a DualState of init": ["uj.dual_ascent(sgd).update(None, ones(3))"],
        "primal must be an optax": ["uj.primal_dual(0.1, uj.dual_ascent(sgd), violations=2)"],
        "dual must be a dual_ascent(...)": ["uj.primal_dual(sgd, sgd, violations=2)"],
        "integral_gain must be a number": ['uj.nu_pi("0.1")'],
        "num_layers must be an integer": ['uj.constraint_names("3")'],
        "sample_losses must be an array of numbers": ["uj.feasibility_report(None, ones(3), C)"],
        "constraints must be a function such as": ["uj.sample_constraints(0.2, uj.tail_mean(0.5))"],
        "reduction must be a function such as tail_mean(0.5)": ["uj.sample_constraints(C, 0.5)"],
    },
    ValueError: {
        "alpha must be in (0, 1), one number or one for each layer": [
            "uj.descent_constraints(0.0)",
            "uj.descent_constraints(1.0)",
        ],
        "reference must be positive and finite, or None": ["uj.descent_constraints(0.2, reference=-1.0)"],
        "layer_losses must hold f_0..f_L with L >= 1": [
            "uj.descent_constraints(0.2)(ones(1))",
            "uj.descent_constraints(0.2)(np.float32(1.0))",
        ],
        "alpha must have one entry for each of L=4 layers, got 2": ["uj.descent_constraints([0.1, 0.2])(ones(5))"],
        "multipliers must have shape (3,), as violations have, got (2,)": ["uj.lagrangian(1.0, ones(3), ones(2))"],
        "multipliers must have the groups of violations": ['uj.lagrangian(1.0, {"gap": 0.5}, {"cap": 1.0})'],
        "objective must be a scalar": ["uj.lagrangian(ones(4), ones(3), np.ones(3))"],
        "cap must be positive and finite, got -1.0": ["uj.dual_ascent(sgd, cap=-1.0)"],
        "resilience must be positive and finite, or None": ["uj.dual_ascent(sgd, resilience=0.0)"],
        "a number of constraints of at least 1, got 0": ["uj.dual_ascent(sgd).init(0)"],
        "violations must hold at least one array": ["uj.dual_ascent(sgd).init({})"],
        "start must be at least 0, as its constraints are inequalities": ["uj.dual_ascent(sgd).init(3, start=-1.0)"],
        "start must be one value or have shape (3,)": ["uj.dual_ascent(sgd).init(3, start=[1.0, 2.0])"],
        "violations must have shape (3,), as multipliers have": [
            "uj.dual_ascent(sgd).update(uj.dual_ascent(sgd).init(3), ones(2))"
        ],
        "kinds must be one of ('at_most', 'equal'), got 'less'": ['uj.dual_ascent(sgd, kinds="less").init(3)'],
        "kinds must be one value, or a tree with the groups of the violations": [
            'uj.dual_ascent(sgd, kinds={"a": "equal"}).init({"b": ones(2)})'
        ],
        "violations must be finite": [
            "uj.dual_ascent(sgd).update(uj.dual_ascent(sgd).init(1), np.array([np.nan], np.float32))"
        ],
        "penalty must be positive and finite": [
            "uj.dual_ascent(None, penalty=float('inf'))",
            "constrained.augmented_lagrangian(1.0, ones(3), ones(3), penalty=0.0)",
        ],
        "must be at least 0, as it is an inequality": ["uj.constraint_report(1.0, -1.0)"],
        "order must be one of": ['uj.primal_dual(sgd, uj.dual_ascent(sgd), violations=2, order="random")'],
        "the state of one primal_dual(...), got 0": ["uj.multipliers_of(optax.adam(0.1).init(np.ones(2)))"],
        "nu must be in (-1, 1)": ["uj.nu_pi(0.1, nu=1.5)"],
        "proportional_gain must be finite and at least 0": ["uj.proportional_integral(0.1, proportional_gain=-1.0)"],
        "num_layers must be at least 1": [
            "uj.constraint_names(0)",
            "Transformer(dim=4, num_layers=0).init(K, Y)",
        ],
        "multipliers must have shape (3,), one a constraint": ["uj.feasibility_report(ones((4, 4)), ones(2), C)"],
        "sample_losses must be (samples, L + 1) with at least one": [
            "uj.feasibility_report(ones(4), ones(3), C)",
            "uj.feasibility_report(np.ones((0, 4), np.float32), ones(3), C)",
        ],
        "tolerance must be finite and at least 0": [
            "uj.feasibility_report(ones((4, 4)), ones(3), C, tolerance=-1.0)",
        ],
        "level must be in [0, 1), one number or one for each": ["uj.tail_mean(2.0)"],
        "x must be (*batch, n, dim=4)": [
            'Transformer(dim="4", num_layers=2).init(K, Y)',
            "Transformer(dim=4, num_layers=2).init(K, Y[..., :3])",
        ],
        "y must hold at least one token of at least one number": ["Transformer(dim=4, num_layers=2).init(K, Y[:, :0])"],
        "dct needs at most as many rows as columns": ["Transformer(dim=4, num_layers=2, rank=9).init(K, Y)"],
    },
}
