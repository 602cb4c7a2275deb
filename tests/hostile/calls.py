"""Bad calls of the library: the error, the argument that it names, and the calls."""

from collections.abc import Iterator

__all__ = ["CALLS", "calls"]


def calls(table: str) -> Iterator[tuple[type[Exception], str, str]]:
    """Yields the error, the named argument and the call of each entry. An indented
    line continues the one before."""
    error: type[Exception] = Exception
    for line in table.replace("\n    ", " ").strip().splitlines():
        if line in ("TypeError", "ValueError"):
            error = TypeError if line == "TypeError" else ValueError
        else:
            name, _, expressions = line.partition(": ")
            yield from (
                (error, name, expression.strip())
                for expression in expressions.split(";")
            )


CALLS = {
    "layers": (
        r"""
TypeError
rho: uj.attention(rho=3)
params: uj.attention().step(None, Y, None)
W_a: uj.attention().step(energies.AttentionParams([[1.0]]), Y, None)
y: uj.attention().step(P, [[1.0]], None); uj.attention().step(P, np.ones((5, 4), int), None)
x: uj.attention(ridge=0.1).step(P, Y, [1.0])
x.present: uj.attention(ridge=0.1).step(P, Y, uj.Anchor(None, np.ones((2, 5))))
key: uj.attention(dim=4).init("3")
spectrum: uj.feedforward(4, spectrum=0.5)
lower: energies.box("a", 1.0)
activation: uj.opteq(4, 3, activation=jnp.abs)
z: jax.eval_shape(lambda: uj.opteq(4, 3).step(uj.opteq(4, 3).init(K), Z.astype(int)))
labels: certificates.certified_radius(ones((2, 3)), labels=ones(2))
parts: jax.jit(lambda M: certificates.lipschitz(M, x=ones((1, 2)), radius=1.0).constant)(ones((2, 2)))
layers: uj.deep_opteq(None)
bases: uj.in_coordinates(sgd, {"W": W}).init({"W": W})
params: certificates.spectral_normalise({"W": W}, where=lambda path: "V" in path)
ValueError
image_shape: certificates.spectral_normalise({"W": np.ones((3, 3, 2, 2), np.float32)})
rank: uj.attention(rank=2)
step_size: certificates.lipschitz(x=ones((1, 2)), radius=1.0, step_size=3.0)
strength: certificates.lipschitz(x=ones((1, 2)), radius=1.0, strength=0.0)
parts: certificates.lipschitz(ones(3), x=ones((1, 3)), radius=1.0); certificates.lipschitz(ones((4, 3)), x=ones((3, 5)), radius=1.0);
    certificates.lipschitz(energies.ConvexPotentialParams(ones((6, 4)), ones(6), ones(6)), x=ones((3, 5)), radius=1.0);
    certificates.lipschitz(CONV, x=ones((3, 8, 2)), radius=1.0); certificates.lipschitz(CONV, x=ones((3, 8, 8, 3)), radius=1.0)
radius: certificates.lipschitz(x=ones((1, 2)), radius=-1.0)
dtype: certificates.lipschitz(x=ones((1, 2)), radius=1.0, dtype="bfloat16")
head: certificates.certified_radius(ones((2, 3)), ones((4, 2)))
bound: certificates.certified_radius(ones((2, 3)), bound=0.0)
labels: certificates.certified_radius(ones((2, 3)), labels=np.array([0, 3]));
    certificates.certified_radius(ones((2, 3)), labels=np.array([0]));
    certificates.margin_loss(ones((2, 3)), np.array([0, -1]), offset=0.1, temperature=1.0);
    certificates.attack(lambda x: x, ones((2, 3)), np.array([0, 3]), 0.1)
left: turned(left=2 * W); turned(left=nan * W); turned(left=W[:3]); turned((4,), left=W)
right: turned(right=W[:2]); turned(right=W[:3, :3])
images: certificates.space_to_depth(ones((4, 3, 1)), 2); certificates.pool(ones((4, 3, 1)), 2)
channels: certificates.pad_channels(ones(3), 2)
rho: uj.attention(rho="gauss"); uj.attention(rho=lambda z: "a")
mask: uj.attention(mask="band"); uj.attention(mask=np.triu(np.ones((3,3),bool)));
    uj.attention(mask=np.ones((3,3),bool)).step(P, Y, None)
W_a: uj.attention(dim=4).step(energies.AttentionParams(np.ones((3, 3))), Y, None)
y: uj.attention().step(P, ones(4), None); uj.attention().step(P, np.full((5, 4), np.nan, np.float32), None);
    jax.eval_shape(lambda: (h := uj.multihead_attention(4, num_heads=2)).step(h.init(K), Y[..., :3], None))
x: uj.attention(ridge=0.1).step(P, Y, ones((7, 4))); uj.hopfield(4).step(energies.HopfieldParams(None), Y, None);
    uj.hopfield(4).step(energies.HopfieldParams(None), Y, np.ones((2, 0, 4), np.float32));
    jax.eval_shape(lambda: uj.opteq(4, 3, 2).step(uj.opteq(4, 3, 2).init(K), Z, ones((3, 2))))
x.present: uj.attention(ridge=0.1).step(P, Y, uj.Anchor(None, np.ones((2, 4), bool)))
num_heads: uj.multihead_attention(4, num_heads=8)
phi: uj.feedforward(4, phi="relu6"); uj.transformer(4, phi="gelu")
spectrum: uj.clip_spectrum(W, 1.0, 0.0)
W_f: uj.feedforward(4).step(energies.FeedForwardParams(np.ones((4, 3))), Y, None);
    uj.clip_spectrum(np.ones((2, 3), np.float32))
z: jax.eval_shape(lambda: uj.convex_potential(3, 5).step(uj.convex_potential(3, 5).init(K), ones(4)))
layers: energies.multi_block([])
params: uj.deep_opteq([uj.opteq(4, 3)]).step((), Z)
lower: energies.box(1.0, 0.0)
gelu: uj.feedforward(4, phi="gelu")
threshold: energies.soft_threshold(-1.0); energies.group_shrinkage(nan)
"""
    ),
    "solvers": (
        r"""
TypeError
y: uj.unroll(half, None, [[1.0]], num_layers=2, record=None)
descent: uj.equilibrium(None, None, Z)
y0: uj.equilibrium(half, None, "state"); uj.equilibrium(half, None, Z.astype(int))
solver: solve(solver=3)
adjoint: solve(adjoint=fp.anderson())
probe: solve(batch_ndim=1, probe=3)
params: fp.monotone_weight(None); uj.certify(uj.attention(), None, Y); certificates.spectral_normalise(None);
    uj.equilibrium(lambda z, x, params: z, 1.0, Z)
smoothness: uj.certify(uj.attention(), P, Y, smoothness="L")
b: uj.equilibrium(half, None, {"a": Z, "b": Z > 0})
got one of: uj.equilibrium(lambda z: z, 1.0, Z)
optimality: uj.implicit_root(None)
objective: uj.implicit_argmin(3.0)
prox: uj.implicit_argmin(jnp.sum, prox="lasso"); uj.prox_gradient(jnp.sum, 3, step_size=1.0)
the solution: uj.implicit_root(lambda a, z: z)(lambda a, z0: [1, 2])(1.0, ones(3));
    uj.implicit_root(lambda a, z: z)(lambda a, z0: jnp.arange(2))(1.0, ones(3))
smooth: uj.prox_gradient(None, step_size=1.0)
descent: uj.certify(half, None, Y)
y: E().step(None, np.ones((4, 3), int), None)
loops: looped.run_loops(half, None, Z, loops=2.0); looped.run_loops(half, None, Z, loops=True)
ValueError
record: uj.unroll(None, None, Y, num_layers=2); uj.unroll(uj.attention(), P, Y, num_layers=2, record="loss")
W_a: uj.unroll(uj.attention(dim=4), energies.AttentionParams(W), Y, num_layers=2, tied=False);
    uj.certify(uj.attention(dim=4), energies.AttentionParams(W), Y, num_layers=2, tied=False)
step: uj.unroll(lambda p, y, x: y[:1], None, Y, num_layers=2, record=None);
    uj.unroll(lambda p, y, x: (y, y), None, Y, num_layers=2, record=None);
    uj.equilibrium(lambda p, z, x: None, None, Z)
y: uj.unroll(half, None, None, num_layers=2, record=None)
y0: uj.equilibrium(half, None, None); uj.equilibrium(half, None, Z + np.nan)
batch_ndim: solve(batch_ndim=3); uj.equilibrium(lambda p, z, x: z, (), (Z, jnp.zeros((3, 4))), batch_ndim=1)
probe: solve(batch_ndim=1, probe=fp.zero_probe(3));
    uj.implicit_root(lambda a, z: z, forward_mode=True)(lambda a, z: z)(1.0, ones(3), probe=fp.zero_probe())
x: fp.monotone_equilibrium(W, ones(3))
smoothness: uj.certify(uj.attention(), P, Y, smoothness=-1.0)
A: certificates.matrix_norm_bound(ones(3))
f_step_size: uj.alternating(None, None, g_step_size=0.1)
structure: uj.equilibrium(lambda p, z, x: (z, z), (), Z)
params: uj.equilibrium(lambda a, b, c: a, jnp.ones(2), Z)
aux: uj.equilibrium(half, 1.0, Z, has_aux=True)
has_aux: uj.equilibrium(uj.opteq(4, 3), 1.0, Z, has_aux=True)
p: fp.averaged(p=0.5, c=0.3)
unrolled: uj.implicit_root(jnp.sin, adjoint="unrolled")
step_size: uj.prox_gradient(jnp.sum, step_size=-1.0)
optimality: uj.implicit_root(lambda a, z: jnp.sum(z))(lambda a, z0: z0)(1.0, ones(3))
image_shape: jax.eval_shape(lambda: fp.monotone_weight(fp.monotone_init(K, 2, 3)))
images: jax.eval_shape(lambda: fp.monotone_equilibrium(fp.monotone_weight(fp.monotone_init(K, 2, 3),
    image_shape=(4, 5)), ones((4, 2, 2))))
f_step: E(f_step=half)
phi: E(phi="rleu")
unroll: uj.unroll(half, None, Y, num_layers=3, record=None, unroll=0);
    uj.unroll(half, None, Y, num_layers=3, record=None, remat=True, unroll=3)
perturb must keep: uj.unroll(half, None, Y, num_layers=3, record=None, perturb=lambda n, before, after: after[:1])
smoothness: uj.certify(uj.attention(), P, Y, smoothness=lambda *_: ones(3))
W: certificates.weight_norm(ones(3))
loops: looped.run_loops(half, None, Z, loops=0); looped.run_loops(half, None, Z, loops=jnp.int32(2))
free: looped.run_loops(half, None, Z, loops=2, free=-1)
block: looped.run_loops(lambda p, h, x: h[:1], None, Z, loops=2); looped.run_loops(lambda p, h, x: h[:1], None, Z, loops=2, free=1)
least: looped.sample_loops(K, 3, least=4)
states: looped.path_independence(ones((1, 2, 3))); looped.step_sizes(ones((1, 2, 3)))
batch_ndim: looped.step_sizes(ones((3, 2)), batch_ndim=2)
"""
    ),
    "training": (
        r"""
TypeError
level: uj.tail_mean("0.5")
layer_losses: uj.descent_constraints(0.2)("losses")
multipliers: uj.lagrangian(1.0, ones(3), None)
optimizer: uj.dual_ascent(None)
cap: uj.dual_ascent(sgd, cap="high")
state: uj.dual_ascent(sgd).update(None, ones(3))
primal: uj.primal_dual(0.1, uj.dual_ascent(sgd), violations=2)
dual: uj.primal_dual(sgd, sgd, violations=2)
layer_losses: constrained.column_sums(uj.descent_constraints(0.2, num_layers=2), None, None)
ValueError
alpha: uj.descent_constraints([0.1, 0.2])(ones(5))
layer_losses: uj.descent_constraints(0.2)(ones(1))
multipliers: uj.lagrangian(1.0, {"gap": 0.5}, {"cap": 1.0})
objective: uj.lagrangian(ones(4), ones(3), np.ones(3))
number of constraints: uj.dual_ascent(sgd).init(0)
violations: uj.dual_ascent(sgd).init({}); uj.dual_ascent(sgd).update(uj.dual_ascent(sgd).init(3), ones(2));
    uj.dual_ascent(sgd).update(uj.dual_ascent(sgd).init(1), np.array([np.nan], np.float32))
start: uj.dual_ascent(sgd).init(3, start=-1.0); uj.dual_ascent(sgd).init(3, start=[1.0, 2.0])
kinds: uj.dual_ascent(sgd, kinds="less").init(3); uj.dual_ascent(sgd, kinds={"a": "equal"}).init({"b": ones(2)})
penalty: uj.dual_ascent(None, penalty=inf); uj.lagrangian(1.0, ones(3), ones(3), penalty=0.0)
inequality: uj.constraint_report(1.0, -1.0)
primal_dual: uj.multipliers_of(optax.adam(0.1).init(np.ones(2)))
num_layers: Transformer(dim=4, num_layers=0).init(K, Y)
layer_losses: constrained.column_sums(D, ones(1), None)
tolerance: uj.held_out_report(D, S, {"layer 1": 0.0}, tolerance=-1.0)
x: Transformer(dim="4", num_layers=2).init(K, Y)
y: jax.eval_shape(Transformer(dim=4, num_layers=2).init, K, Y[:, :0])
dct: jax.eval_shape(Transformer(dim=4, num_layers=2, rank=9).init, K, Y)
"""
    ),
}
