"""Layers, graphs and penalties given what they cannot take: by error and its words, the expressions."""

EXPRESSIONS: dict[type[Exception], dict[str, list[str]]] = {
    TypeError: {
        "dim must be an integer or None": ['uj.attention(dim="4")'],
        "step_size must be a number": ['uj.attention(step_size="1")'],
        "rho must be one of ['cauchy', 'geman_mcclure', 'log',": ["uj.attention(rho=3)"],
        "block must be an integer or None": ['uj.attention(block="all")'],
        "kernel must be a name": ["uj.attention(kernel=3)"],
        "params must be AttentionParams": [
            "uj.attention().step(None, Y, None)",
            "uj.attention().energy(None, Y)",
        ],
        "params.W_a must be an array": ["uj.attention().step(energies.AttentionParams([[1.0]]), Y, None)"],
        "y must be an array": ["uj.attention().step(P, [[1.0]], None)"],
        "y must have a floating dtype": ["uj.attention().step(P, np.ones((5, 4), int), None)"],
        "x must be an array": ["uj.attention(ridge=0.1).step(P, Y, [1.0])"],
        "x.present must be boolean": ["uj.attention(ridge=0.1).step(P, Y, uj.Anchor(None, np.ones((2, 5))))"],
        "key must be one of jax.random.key": ['uj.attention(dim=4).init("3")'],
        "dim must be an integer": [
            'uj.multihead_attention("4", num_heads=2)',
            'uj.feedforward("4")',
            'uj.layer_norm("4")',
            'uj.transformer("4")',
            'uj.hopfield("4")',
            'uj.unit_layer("4")',
            'uj.lista("4", 6)',
            'uj.opteq("4", 3)',
        ],
        "num_heads must be an integer": ["uj.multihead_attention(4, num_heads=2.5)"],
        "params must be HeadsParams": ["uj.multihead_attention(4, num_heads=2).step(None, Y, None)"],
        "ridge must be a number": ['uj.attention(ridge="much")'],
        "phi must be one of ['box', 'elastic_net', 'group_shrinkage',": ["uj.feedforward(4, phi=jax.nn.relu)"],
        "spectrum must be a pair of numbers or None": ["uj.feedforward(4, spectrum=0.5)"],
        "lower must be a number": ['uj.feedforward(4, spectrum=("a", "b"))'],
        "lower must be a number or an array of numbers": ['energies.box("a", 1.0)'],
        "params must be FeedForwardParams": ["uj.feedforward(4).step(None, Y, None)"],
        "rank must be an integer or None": ["uj.transformer(4, rank=5.5)"],
        "params must be TransformerParams": ["uj.transformer(4).step(None, Y, None)"],
        "params must be HopfieldParams": ["uj.hopfield(4, num_patterns=3).step(None, Y, None)"],
        "params must be UnitLayerParams": ["uj.unit_layer(4).step(None, Y, None)"],
        "params must be ListaParams": ["uj.lista(4, 6).step(None, Y, None)"],
        "num_atoms must be an integer": ['uj.dust(4, "6")', 'energies.cosine_dictionary("6", 4)'],
        "params must be DustParams": ["uj.dust(4, 6).step(None, Y, Y)"],
        "activation must be one of ['identity', 'leaky_relu',": ["uj.opteq(4, 3, activation=jnp.abs)"],
        "params must be OptEqParams": ["uj.opteq(4, 3).step(None, Z)"],
        "z must have a floating dtype": ["uj.opteq(4, 3).step(uj.opteq(4, 3).init(K), Z.astype(int))"],
        "kernel_size must be an integer": ['uj.opteq_conv(2, 3, kernel_size="3")'],
        "layers must be a list of Descents": ["uj.deep_opteq(None)"],
        "params must be tuple": ["uj.deep_opteq([uj.opteq(4, 3)]).step(None, Z)"],
    },
    ValueError: {
        "dim must be at least 1": ["uj.attention(dim=0)", "uj.attention(dim=-3)", "uj.feedforward(0)"],
        "rank must be between 1 and dim=None": ["uj.attention(rank=2)"],
        "rank must be between 1 and dim=4": ["uj.attention(dim=4, rank=9)"],
        "rank must be at least 1, or None": ["uj.attention(dim=4, rank=0)"],
        "step_size must be in (0, 1]": [
            "uj.attention(step_size=0.0)",
            'uj.attention(step_size=float("nan"))',
            "uj.causal_attention(step_size=-1.0)",
            "uj.layer_norm(4, step_size=3.0)",
        ],
        "ridge must be finite and at least 0": ["uj.attention(ridge=-1.0)", 'uj.attention(ridge=float("inf"))'],
        "form must be one of ('jacobi', 'softmax')": ['uj.attention(form="spectral")', "uj.attention(form=3)"],
        "rho must be one of ['cauchy', 'geman_mcclure', 'log',": ['uj.attention(rho="gauss")'],
        "rho '<lambda>' must be concave, but its mean slope rises": ["uj.attention(rho=lambda z: z**2)"],
        "rho '<lambda>' must be nondecreasing, but falls from -0": ["uj.attention(rho=lambda z: -z)"],
        "rho '<lambda>' must be finite on [0, inf), but at z=0 it": ["uj.attention(rho=lambda z: jnp.nan*z)"],
        "rho '<lambda>' must be elementwise, but its value turns": ['uj.attention(rho=lambda z: "a")'],
        "mask must be a boolean (n, n) array": [
            'uj.attention(mask="band")',
            "uj.attention(mask=np.ones((3,4),bool))",
        ],
        "mask must be symmetric (an undirected graph), but mask[0,": [
            "uj.attention(mask=np.triu(np.ones((3,3),bool)))"
        ],
        "block must be at least 1, or None": ["uj.attention(block=0)"],
        "mask is (3, 3), but y has n=5 tokens (shape (2, 5, 4))": [
            "uj.attention(mask=np.ones((3,3),bool)).step(P, Y, None)"
        ],
        "W_a must be (4, 4)": [
            "uj.attention(dim=4).step(energies.AttentionParams(np.ones((3, 3))), Y, None)",
            "uj.attention(dim=4).step(P, Y, None)",
        ],
        "y must hold at least one token of at least one number": [
            "uj.attention().step(P, Y[:, :0], None)",
            "uj.attention().step(P, Y[..., :0], None)",
        ],
        "y must be (*batch, n, d) with at least two axes": ["uj.attention().step(P, ones(4), None)"],
        "y must be finite, but y[0, 0] is nan": ["uj.attention().step(P, np.full((5, 4), np.nan, np.float32), None)"],
        "y must be finite, but y[0, 0] is inf": ["uj.attention().step(P, np.full((5, 4), np.inf, np.float32), None)"],
        "x must broadcast to y's shape (2, 5, 4)": ["uj.attention(ridge=0.1).step(P, Y, ones((7, 4)))"],
        "x.present must broadcast to y's tokens (2, 5)": [
            "uj.attention(ridge=0.1).step(P, Y, uj.Anchor(None, np.ones((2, 4), bool)))"
        ],
        "num_heads must be at least 1": ["uj.multihead_attention(4, num_heads=0)"],
        "num_heads must be at most dim=4 unless": ["uj.multihead_attention(4, num_heads=8)"],
        "rank must be at most dim // num_heads = 1 for orthogonal": [
            'uj.multihead_attention(4, num_heads=3, majoriser="orthogonal", rank=2)'
        ],
        "majoriser must be one of ('block', 'orthogonal')": [
            'uj.multihead_attention(4, num_heads=2, majoriser="diagonal")'
        ],
        "W_a must be (2, 4, 2)": [
            "uj.multihead_attention(4, num_heads=2).step(uj.energies.HeadsParams(ones((4, 4))), Y, None)"
        ],
        "y must have tokens of width dim=4": [
            "(h := uj.multihead_attention(4, num_heads=2)).step(h.init(K), Y[..., :3], None)",
            "uj.feedforward(4).step(uj.feedforward(4).init(K), Y[..., :2], None)",
            "uj.layer_norm(4).step(None, Y[..., :3], None)",
        ],
        "step_size must be positive and finite": [
            "uj.feedforward(4, step_size=0.0)",
            'uj.moreau_envelope("relu", Y, 0.0)',
        ],
        "phi must be one of ['box', 'elastic_net', 'group_shrinkage',": [
            'uj.feedforward(4, phi="relu6")',
            'uj.transformer(4, phi="gelu")',
            'uj.unit_layer(4, activation="sign")',
        ],
        "spectrum must be finite with lower < upper": [
            "uj.feedforward(4, spectrum=(1.0, 0.0))",
            "uj.clip_spectrum(W, 1.0, 0.0)",
        ],
        "W_f must be (4, 4)": ["uj.feedforward(4).step(energies.FeedForwardParams(np.ones((4, 3))), Y, None)"],
        "radius must be positive and finite": ["uj.layer_norm(4, radius=-1.0)", "uj.transformer(4, norm_radius=0.0)"],
        "epsilon must be finite and at least 0": ["uj.layer_norm(4, epsilon=-1e-3)"],
        "anchor must be 'input', 'row' or a function of x": [
            'uj.transformer(4, anchor="bias")',
            "uj.transformer(4, anchor=None)",
        ],
        "dim must be at least 2, got 1": ["uj.layer_norm(1)"],
        "input_dim must be at least 1, or None": ["uj.opteq(2, 2, 0)", "uj.unit_layer(4, input_dim=0)"],
        "input_channels must be at least 1, or None": ["uj.opteq_conv(2, 2, 0)"],
        "energy must be one of ('envelope', 'conjugate')": ['uj.unit_layer(4, energy="moreau")'],
        "num_patterns must be at least 1, or None": ["uj.hopfield(4, num_patterns=0)"],
        "inverse_temperature must be positive and finite": ["uj.hopfield(4, num_patterns=3, inverse_temperature=0.0)"],
        "x must hold keys": ["uj.hopfield(4).step(energies.HopfieldParams(None), Y, None)"],
        "x must hold keys of shape (2, 1, 4), or broadcasting to it": [
            "uj.hopfield(4).step(energies.HopfieldParams(None), Y, np.ones((2, 0, 4), np.float32))"
        ],
        "mu must be positive and finite": ["uj.unit_layer(4, mu=0.0)"],
        "energy must be 'envelope' unless width = dim = 4": ['uj.unit_layer(4, width=2, energy="conjugate")'],
        "skip must be in (0, 1]": [
            "uj.unit_layer(4, skip=0.0)",
            "uj.opteq(4, 3, skip=0.0)",
            "uj.opteq(4, 3, skip=1.5)",
        ],
        "num_atoms must be at least 1": ["uj.lista(4, 0)", "energies.cosine_dictionary(0, 4)"],
        "sparsity must be finite and at least 0": ["uj.lista(4, 6, sparsity=-1.0)"],
        "x must hold the signal": ["uj.lista(4, 6).step(uj.lista(4, 6).init(K), np.ones((2, 5, 6), np.float32), None)"],
        "curvature must be positive and finite": ["uj.dust(4, 6, curvature=0.0)"],
        "width must be at least 1": ["uj.opteq(4, 0)"],
        "activation must be one of ['identity', 'leaky_relu',": ['uj.opteq(4, 3, activation="softmax")'],
        "z must be (*batch, 4)": ["uj.opteq(4, 3).step(uj.opteq(4, 3).init(K), Z[:, :3])"],
        "x must have the batch axes (2,) of z or broadcast to them": [
            "uj.opteq(4, 3, 2).step(uj.opteq(4, 3, 2).init(K), Z, np.ones((3, 2), np.float32))"
        ],
        "kernel_size must be odd and positive": ["uj.opteq_conv(2, 3, kernel_size=2)"],
        "z must be (*batch, height, width, 2)": ["uj.opteq_conv(2, 3).step(uj.opteq_conv(2, 3).init(K), Z)"],
        "layers must hold at least one layer": [
            "uj.deep_opteq([])",
            "energies.multi_block([])",
            "uj.symmetric_embedding([])",
        ],
        "params must hold those of 1 layers": ["uj.deep_opteq([uj.opteq(4, 3)]).step((), Z)"],
        "params must hold those of 2 layers": [
            "uj.deep_opteq([uj.opteq(4, 3), uj.opteq(4, 3)]).step((uj.opteq(4, 3).init(K),), Z)"
        ],
        "lower must be below upper": ["energies.box(1.0, 0.0)", 'energies.box(float("nan"), 1.0)'],
        "got 'gelu', which falls somewhere: every proximal operator": ['uj.feedforward(4, phi="gelu")'],
        "threshold must be finite and at least 0": [
            "energies.soft_threshold(-1.0)",
            'energies.group_shrinkage(float("nan"))',
        ],
        "slope must be in (0, 1]": ["energies.leaky_relu(slope=2.0)"],
        "W_f must be a square matrix": ["uj.clip_spectrum(np.ones((2, 3), np.float32))"],
        "phi must be one of ('relu', 'identity'), which commute": [
            'uj.symmetric_embedding([np.ones((3, 4))], phi="gelu")'
        ],
    },
}
