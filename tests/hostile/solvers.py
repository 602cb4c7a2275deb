"""Unrolling, equilibria and certificates given what they cannot take: by error and its words, the expressions."""

EXPRESSIONS: dict[type[Exception], dict[str, list[str]]] = {
    ValueError: {
        'record="energy" needs a Descent': [
            "uj.unroll(None, None, Y, num_layers=2)",
            'uj.unroll("attention", None, Y, num_layers=2)',
        ],
        "num_layers must be at least 1": [
            "uj.unroll(uj.attention(), P, Y, num_layers=0)",
            "uj.certify(uj.attention(), P, Y, num_layers=0)",
        ],
        'record must be "energy", a function of (params, y, x), or': [
            'uj.unroll(uj.attention(), P, Y, num_layers=2, record="loss")'
        ],
        "params.W_a must have a leading axis of num_layers=2 when": [
            "uj.unroll(uj.attention(dim=4), energies.AttentionParams(W), Y, num_layers=2, tied=False)"
        ],
        "the step must keep shape and dtype, y float32[2, 5, 4]": [
            "uj.unroll(lambda p, y, x: y[:1], None, Y, num_layers=2, record=None)"
        ],
        "the step must keep the state's structure, PyTreeDef(*)": [
            "uj.unroll(lambda p, y, x: (y, y), None, Y, num_layers=2, record=None)",
            "uj.unroll(lambda p, y, x: None, None, Y, num_layers=2, record=None)",
            "uj.equilibrium(lambda p, z, x: None, None, Z)",
        ],
        "y must hold at least one array": ["uj.unroll(half, None, None, num_layers=2, record=None)"],
        "y0 must hold at least one array": ["uj.equilibrium(half, None, None)", "uj.equilibrium(half, None, [])"],
        "y0 must be finite, got NaN or infinity": ["uj.equilibrium(half, None, Z + np.nan)"],
        "solver must be one of ['accelerated_gradient',": ['uj.equilibrium(half, None, Z, solver="newton")'],
        "adjoint must be one of ['conjugate_gradient', 'gmres',": ['uj.equilibrium(half, None, Z, adjoint="exact")'],
        "tol must be in (0, 1)": [
            "uj.equilibrium(half, None, Z, tol=0.0)",
            'uj.equilibrium(half, None, Z, tol=float("nan"))',
        ],
        "max_steps must be at least 1": ["uj.equilibrium(half, None, Z, max_steps=0)"],
        "on_failure must be one of ('error', 'warn', 'accept')": [
            'uj.equilibrium(half, None, Z, on_failure="raise")',
            "uj.equilibrium(half, None, Z, on_failure=None)",
        ],
        "adjoint_tol must be in (0, 1)": ["uj.equilibrium(half, None, Z, adjoint_tol=-1.0)"],
        "adjoint_max_steps must be at least 1": ["uj.equilibrium(half, None, Z, adjoint_max_steps=0)"],
        "batch_ndim must be between 0 and 2, the least rank of the": [
            "uj.equilibrium(half, None, Z, batch_ndim=3)",
            "uj.equilibrium(half, None, Z, batch_ndim=-1)",
        ],
        "probe must have shape (2,), one entry an example": [
            "uj.equilibrium(half, None, Z, batch_ndim=1, probe=fp.zero_probe(3))"
        ],
        "probe needs the reverse mode: drop it, or forward_mode": [
            "uj.equilibrium(half, None, Z, probe=fp.zero_probe(), forward_mode=True)"
        ],
        "the step must keep shape and dtype, y float32[2, 4]": [
            "uj.equilibrium(lambda p, z, x: z[:1], None, Z)",
            "uj.equilibrium(lambda p, z, x: z.astype(jnp.bfloat16), None, Z)",
        ],
        "|W| must be at most 1": ["uj.equilibrium(uj.opteq(4, 4), energies.OptEqParams(3.0 * W, None, W[0]), Z)"],
        "window must be at least 1": ["fp.anderson(0)", "fp.gmres(0)"],
        "share must be in (0, 1]": ["fp.damped(0.0)"],
        "terms must be at least 1": ["fp.neumann(0)"],
        "num_steps must be at least 1": ["fp.unrolled(0)", "certificates.spectral_norm(lambda v: v, Z, num_steps=0)"],
        "size must be at least 1": ["fp.monotone_init(K, 0)"],
        "splitting must be one of ('forward_backward',": ['fp.monotone_equilibrium(W, ones(4), splitting="newton")'],
        "x must hold vectors of width 4 that W was made for": ["fp.monotone_equilibrium(W, ones(3))"],
        "num_points must be at least 1": ["uj.certify(uj.attention(), P, Y, num_points=0)"],
        "smoothness must be finite and at least 0": ["uj.certify(uj.attention(), P, Y, smoothness=-1.0)"],
        "A must hold matrices (*batch, h, m)": ["certificates.matrix_norm_bound(ones(3))"],
        "bound must be positive": ["certificates.spectral_normalise(uj.opteq(4, 3).init(K), bound=0.0)"],
        "num_steps must be at least 2": ["certificates.curvature(lambda y: jnp.sum(y**2, (-2, -1)), Y, num_steps=0)"],
        "one of f_step_size and f_step must be given": [
            "uj.alternating(None, None, g_step_size=0.1)",
            "uj.alternating(lambda p, y, x: 0.0, lambda p, y, x: 0.0, g_step_size=0.1)",
        ],
        "g_step_size must be positive and finite": [
            "uj.alternating(lambda p, y, x: 0.0, lambda p, y, x: 0.0, g_step_size=0.0, f_step_size=0.1)"
        ],
    },
    TypeError: {
        "num_layers must be an integer": ['uj.unroll(uj.attention(), P, Y, num_layers="2")'],
        "y[0] must be an array": ["uj.unroll(half, None, [[1.0]], num_layers=2, record=None)"],
        "y must be an array": ['uj.unroll(half, None, "tokens", num_layers=2, record=None)'],
        "descent must be a Descent or a step (params, y, x) -> y'": ["uj.equilibrium(None, None, Z)"],
        "y0 must be an array": ['uj.equilibrium(half, None, "state")'],
        "y0 must have a floating dtype": ["uj.equilibrium(half, None, Z.astype(int))"],
        "solver must be one of ['accelerated_gradient',": ["uj.equilibrium(half, None, Z, solver=3)"],
        "adjoint must be one of ['conjugate_gradient', 'gmres',": [
            "uj.equilibrium(half, None, Z, adjoint=fp.anderson())"
        ],
        "tol must be a number": ['uj.equilibrium(half, None, Z, tol="1e-3")'],
        "max_steps must be an integer": ["uj.equilibrium(half, None, Z, max_steps=1.5)"],
        "probe must be zeros of zero_probe(*batch)": ["uj.equilibrium(half, None, Z, batch_ndim=1, probe=3)"],
        "params must be OptEqParams": ["uj.equilibrium(uj.opteq(4, 3), None, Z)"],
        "window must be an integer": ['fp.anderson("5")'],
        "share must be a number": ['fp.damped("half")'],
        "num_steps must be an integer": ['fp.unrolled("3")'],
        "params must be MonotoneParams": ["fp.monotone_weight(None)"],
        "smoothness must be a number, an array or a function": ['uj.certify(uj.attention(), P, Y, smoothness="L")'],
        "params must be AttentionParams": ["uj.certify(uj.attention(), None, Y)"],
        "params must hold a weight W, as OptEqParams do": ["certificates.spectral_normalise(None)"],
        "g_step_size must be a number": [
            'uj.alternating(lambda p, y, x: 0.0, lambda p, y, x: 0.0, g_step_size="0.1", f_step_size=0.1)'
        ],
    },
}
