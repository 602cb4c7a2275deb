"""Bad calls of the library: the error, the argument that it names, and the calls."""

from collections.abc import Iterator

__all__ = ["CALLS", "calls"]


def calls(table: str) -> Iterator[tuple[type[Exception], str, str]]:
    """Yields the error, the named argument and the call of each entry; an indented
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
dim: uj.attention(dim="4"); uj.multihead_attention("4", num_heads=2); uj.feedforward("4"); uj.layer_norm("4");
    uj.transformer("4"); uj.hopfield("4"); uj.lista("4", 6); uj.opteq("4", 3)
step_size: uj.attention(step_size="1")
rho: uj.attention(rho=3)
block: uj.attention(block="all")
params: uj.attention().step(None, Y, None); uj.attention().energy(None, Y);
    uj.multihead_attention(4, num_heads=2).step(None, Y, None); uj.feedforward(4).step(None, Y, None);
    uj.transformer(4).step(None, Y, None); uj.hopfield(4, num_patterns=3).step(None, Y, None);
    uj.lista(4, 6).step(None, Y, None); uj.dust(4, 6).step(None, Y, Y); uj.opteq(4, 3).step(None, Z);
    uj.deep_opteq([uj.opteq(4, 3)]).step(None, Z)
W_a: uj.attention().step(energies.AttentionParams([[1.0]]), Y, None)
y: uj.attention().step(P, [[1.0]], None); uj.attention().step(P, np.ones((5, 4), int), None)
x: uj.attention(ridge=0.1).step(P, Y, [1.0])
x.present: uj.attention(ridge=0.1).step(P, Y, uj.Anchor(None, np.ones((2, 5))))
key: uj.attention(dim=4).init("3")
num_heads: uj.multihead_attention(4, num_heads=2.5)
ridge: uj.attention(ridge="much")
phi: uj.feedforward(4, phi=jax.nn.relu)
spectrum: uj.feedforward(4, spectrum=0.5)
lower: uj.feedforward(4, spectrum=("a", "b")); energies.box("a", 1.0)
rank: uj.transformer(4, rank=5.5)
num_atoms: uj.dust(4, "6"); energies.cosine_dictionary("6", 4)
activation: uj.opteq(4, 3, activation=jnp.abs)
z: uj.opteq(4, 3).step(uj.opteq(4, 3).init(K), Z.astype(int))
kernel_size: uj.opteq_conv(2, 3, kernel_size="3"); uj.convex_equilibrium(2, 3, kernel_size="3")
labels: certificates.certified_radius(ones((2, 3)), labels=ones(2))
parts: jax.jit(lambda M: certificates.lipschitz(M, x=ones((1, 2)), radius=1.0).constant)(ones((2, 2)))
layers: uj.deep_opteq(None)
ValueError
dim: uj.attention(dim=0); uj.attention(dim=-3); uj.feedforward(0); uj.layer_norm(1)
rank: uj.attention(rank=2); uj.attention(dim=4, rank=9); uj.attention(dim=4, rank=0)
step_size: uj.attention(step_size=0.0); uj.attention(step_size=nan); uj.causal_attention(step_size=-1.0);
    uj.layer_norm(4, step_size=3.0); uj.feedforward(4, step_size=0.0); uj.convex_potential(4, 3, step_size=2.5);
    uj.convex_potential_conv(4, 3, step_size=0.0); certificates.lipschitz(x=ones((1, 2)), radius=1.0, step_size=3.0)
scaling: uj.convex_potential(4, 3, scaling="svd"); uj.convex_potential_conv(4, 3, scaling=None)
strength: uj.convex_equilibrium(4, 3, strength=0.6); certificates.lipschitz(x=ones((1, 2)), radius=1.0, strength=0.0)
parts: certificates.lipschitz(ones(3), x=ones((1, 3)), radius=1.0); certificates.lipschitz("pool", x=ones((1, 3)), radius=1.0)
radius: certificates.lipschitz(x=ones((1, 2)), radius=-1.0)
dtype: certificates.lipschitz(x=ones((1, 2)), radius=1.0, dtype="bfloat16")
head: certificates.certified_radius(ones((2, 3)), ones((4, 2)))
bound: certificates.certified_radius(ones((2, 3)), bound=0.0)
labels: certificates.certified_radius(ones((2, 3)), labels=np.array([0, 3]));
    certificates.certified_radius(ones((2, 3)), labels=np.array([0]))
offset: certificates.margin_loss(ones((2, 3)), np.array([0, 1]), offset=-1.0, temperature=1.0)
temperature: certificates.margin_loss(ones((2, 3)), np.array([0, 1]), offset=1.0, temperature=0.0)
images: certificates.space_to_depth(ones((4, 3, 1)), 2); certificates.pool(ones((4, 3, 1)), 2)
channels: certificates.pad_channels(ones(3), 2)
ridge: uj.attention(ridge=-1.0); uj.attention(ridge=inf)
form: uj.attention(form="spectral")
kernel: uj.attention(kernel="cuda"); uj.attention(kernel=3); uj.multihead_attention(4, num_heads=2, kernel="cudnn")
rho: uj.attention(rho="gauss"); uj.attention(rho=lambda z: z**2); uj.attention(rho=lambda z: -z);
    uj.attention(rho=lambda z: jnp.nan*z); uj.attention(rho=lambda z: "a")
mask: uj.attention(mask="band"); uj.attention(mask=np.ones((3,4),bool));
    uj.attention(mask=np.triu(np.ones((3,3),bool))); uj.attention(mask=np.ones((3,3),bool)).step(P, Y, None)
block: uj.attention(block=0)
W_a: uj.attention(dim=4).step(energies.AttentionParams(np.ones((3, 3))), Y, None); uj.attention(dim=4).step(P, Y, None);
    uj.multihead_attention(4, num_heads=2).step(uj.energies.HeadsParams(ones((4, 4))), Y, None)
y: uj.attention().step(P, Y[:, :0], None); uj.attention().step(P, Y[..., :0], None);
    uj.attention().step(P, ones(4), None); uj.attention().step(P, np.full((5, 4), np.nan, np.float32), None);
    uj.attention().step(P, np.full((5, 4), np.inf, np.float32), None);
    (h := uj.multihead_attention(4, num_heads=2)).step(h.init(K), Y[..., :3], None);
    uj.feedforward(4).step(uj.feedforward(4).init(K), Y[..., :2], None); uj.layer_norm(4).step(None, Y[..., :3], None)
x: uj.attention(ridge=0.1).step(P, Y, ones((7, 4))); uj.hopfield(4).step(energies.HopfieldParams(None), Y, None);
    uj.hopfield(4).step(energies.HopfieldParams(None), Y, np.ones((2, 0, 4), np.float32));
    uj.lista(4, 6).step(uj.lista(4, 6).init(K), np.ones((2, 5, 6), np.float32), None);
    uj.opteq(4, 3, 2).step(uj.opteq(4, 3, 2).init(K), Z, np.ones((3, 2), np.float32))
x.present: uj.attention(ridge=0.1).step(P, Y, uj.Anchor(None, np.ones((2, 4), bool)))
num_heads: uj.multihead_attention(4, num_heads=0); uj.multihead_attention(4, num_heads=8)
phi: uj.feedforward(4, phi="relu6"); uj.transformer(4, phi="gelu")
spectrum: uj.feedforward(4, spectrum=(1.0, 0.0)); uj.clip_spectrum(W, 1.0, 0.0)
W_f: uj.feedforward(4).step(energies.FeedForwardParams(np.ones((4, 3))), Y, None);
    uj.clip_spectrum(np.ones((2, 3), np.float32))
radius: uj.layer_norm(4, radius=-1.0)
epsilon: uj.layer_norm(4, epsilon=-1e-3)
anchor: uj.transformer(4, anchor="bias"); uj.transformer(4, anchor=None)
input_dim: uj.opteq(2, 2, 0)
input_channels: uj.opteq_conv(2, 2, 0)
num_patterns: uj.hopfield(4, num_patterns=0)
inverse_temperature: uj.hopfield(4, num_patterns=3, inverse_temperature=0.0)
skip: uj.opteq(4, 3, skip=0.0); uj.opteq(4, 3, skip=1.5)
num_atoms: uj.lista(4, 0); energies.cosine_dictionary(0, 4)
sparsity: uj.lista(4, 6, sparsity=-1.0)
curvature: uj.dust(4, 6, curvature=0.0)
width: uj.opteq(4, 0)
activation: uj.opteq(4, 3, activation="softmax")
z: uj.opteq(4, 3).step(uj.opteq(4, 3).init(K), Z[:, :3]);
    uj.opteq_conv(2, 3).step(energies.OptEqParams(ones((3, 3, 2, 3)), None, ones(3)), Z);
    uj.convex_potential(3, 5).step(uj.convex_potential(3, 5).init(K), ones(4))
kernel_size: uj.opteq_conv(2, 3, kernel_size=2); uj.convex_potential_conv(2, 3, kernel_size=2)
layers: uj.deep_opteq([]); energies.multi_block([])
params: uj.deep_opteq([uj.opteq(4, 3)]).step((), Z);
    uj.deep_opteq([uj.opteq(4, 3), uj.opteq(4, 3)]).step((uj.opteq(4, 3).init(K),), Z)
lower: energies.box(1.0, 0.0); energies.box(nan, 1.0)
gelu: uj.feedforward(4, phi="gelu")
threshold: energies.soft_threshold(-1.0); energies.group_shrinkage(nan)
slope: energies.leaky_relu(slope=2.0)
"""
    ),
    "solvers": (
        r"""
TypeError
num_layers: uj.unroll(uj.attention(), P, Y, num_layers="2")
y: uj.unroll(half, None, [[1.0]], num_layers=2, record=None); uj.unroll(half, None, "tokens", num_layers=2, record=None)
descent: uj.equilibrium(None, None, Z)
y0: uj.equilibrium(half, None, "state"); uj.equilibrium(half, None, Z.astype(int));
    uj.equilibrium(half, None, [0.0, 1.0])
solver: solve(solver=3); solve(solver=fp.picard)
adjoint: solve(adjoint=fp.anderson()); solve(adjoint=fp.picard)
tol: solve(tol="1e-3")
max_steps: solve(max_steps=1.5); solve(max_steps=True)
probe: solve(batch_ndim=1, probe=3)
params: uj.equilibrium(uj.opteq(4, 3), None, Z); fp.monotone_weight(None); uj.certify(uj.attention(), None, Y);
    certificates.spectral_normalise(None); uj.equilibrium(lambda z, x, params: z, 1.0, Z);
    uj.equilibrium(lambda z, params: z, 1.0, Z)
window: fp.anderson("5")
damping: fp.damped("half")
num_steps: fp.unrolled("3")
smoothness: uj.certify(uj.attention(), P, Y, smoothness="L")
g_step_size: uj.alternating(lambda p, y, x: 0.0, lambda p, y, x: 0.0, g_step_size="0.1", f_step_size=0.1)
adjoint_max_steps: solve(adjoint_max_steps=True)
b: uj.equilibrium(half, None, {"a": Z, "b": Z > 0})
got one of: uj.equilibrium(lambda z: z, 1.0, Z)
optimality: uj.implicit_root(None)
objective: uj.implicit_argmin(3.0)
prox: uj.implicit_argmin(jnp.sum, prox="lasso"); uj.prox_gradient(jnp.sum, 3, step_size=1.0)
the solution: uj.implicit_root(lambda a, z: z)(lambda a, z0: [1, 2])(1.0, ones(3));
    uj.implicit_root(lambda a, z: z)(lambda a, z0: jnp.arange(2))(1.0, ones(3))
smooth: uj.prox_gradient(None, step_size=1.0)
ValueError
record: uj.unroll(None, None, Y, num_layers=2); uj.unroll("attention", None, Y, num_layers=2);
    uj.unroll(uj.attention(), P, Y, num_layers=2, record="loss")
num_layers: uj.unroll(uj.attention(), P, Y, num_layers=0); uj.certify(uj.attention(), P, Y, num_layers=0)
W_a: uj.unroll(uj.attention(dim=4), energies.AttentionParams(W), Y, num_layers=2, tied=False);
    uj.certify(uj.attention(dim=4), energies.AttentionParams(W), Y, num_layers=2, tied=False)
step: uj.unroll(lambda p, y, x: y[:1], None, Y, num_layers=2, record=None);
    uj.unroll(lambda p, y, x: (y, y), None, Y, num_layers=2, record=None);
    uj.unroll(lambda p, y, x: None, None, Y, num_layers=2, record=None); uj.equilibrium(lambda p, z, x: None, None, Z);
    uj.equilibrium(lambda p, z, x: z[:1], None, Z); uj.equilibrium(lambda p, z, x: z.astype(jnp.bfloat16), None, Z)
y: uj.unroll(half, None, None, num_layers=2, record=None)
y0: uj.equilibrium(half, None, None); uj.equilibrium(half, None, []); uj.equilibrium(half, None, Z + np.nan);
    uj.equilibrium(lambda p, z, x: z, (), ())
solver: solve(solver="newton")
adjoint: solve(adjoint="exact")
tol: solve(tol=0.0); solve(tol=nan); solve(tol=-1e-3); solve(tol=1.0)
max_steps: solve(max_steps=0)
on_failure: solve(on_failure="raise")
tol: uj.implicit_root(jnp.sin, tol=0.0)
adjoint_tol: solve(adjoint_tol=-1.0); solve(adjoint_tol=0.0); uj.implicit_root(jnp.sin, adjoint_tol=0.0)
adjoint_max_steps: solve(adjoint_max_steps=0); solve(adjoint_max_steps=-1)
batch_ndim: solve(batch_ndim=3); solve(batch_ndim=-1);
    uj.equilibrium(lambda p, z, x: z, (), (Z, jnp.zeros((3, 4))), batch_ndim=1);
    uj.implicit_root(jnp.sin, batch_ndim=-1)
probe: solve(batch_ndim=1, probe=fp.zero_probe(3)); solve(probe=fp.zero_probe(), forward_mode=True);
    solve(adjoint="unrolled", probe=fp.zero_probe());
    uj.implicit_root(lambda a, z: z, forward_mode=True)(lambda a, z: z)(1.0, ones(3), probe=fp.zero_probe())
W: uj.equilibrium(uj.opteq(4, 4), energies.OptEqParams(3.0 * W, None, W[0]), Z)
window: fp.anderson(0); fp.gmres(0)
damping: fp.damped(0.0)
terms: fp.neumann(0)
num_steps: fp.unrolled(0); certificates.spectral_norm(lambda v: v, Z, num_steps=0);
    certificates.curvature(lambda y: jnp.sum(y**2, (-2, -1)), Y, num_steps=0)
size: fp.monotone_init(K, 0)
x: fp.monotone_equilibrium(W, ones(3))
num_points: uj.certify(uj.attention(), P, Y, num_points=0)
smoothness: uj.certify(uj.attention(), P, Y, smoothness=-1.0); fp.averaged(smoothness=0.0)
A: certificates.matrix_norm_bound(ones(3))
bound: certificates.spectral_normalise(uj.opteq(4, 3).init(K), bound=0.0)
f_step_size: uj.alternating(None, None, g_step_size=0.1);
    uj.alternating(lambda p, y, x: 0.0, lambda p, y, x: 0.0, g_step_size=0.1)
g_step_size: uj.alternating(lambda p, y, x: 0.0, lambda p, y, x: 0.0, g_step_size=0.0, f_step_size=0.1)
atol: solve(atol=-1e-3); solve(atol=np.nan); solve(atol=np.inf)
structure: uj.equilibrium(lambda p, z, x: (z, z), (), Z)
params: uj.equilibrium(lambda a, b, c: a, jnp.ones(2), Z)
aux: uj.equilibrium(half, 1.0, Z, has_aux=True)
has_aux: uj.equilibrium(uj.opteq(4, 3), 1.0, Z, has_aux=True)
eta: fp.averaged(eta=2.0)
p: fp.averaged(p=0.5, c=0.3); fp.averaged(p=0.5, c=0.25)
damping: fp.neumann(damping=0.0)
unrolled: uj.implicit_root(jnp.sin, adjoint="unrolled")
step_size: uj.implicit_argmin(jnp.sum, step_size=0.0); uj.prox_gradient(jnp.sum, step_size=-1.0);
    fp.monotone_equilibrium(W, ones(4), step_size=0.0)
optimality: uj.implicit_root(lambda a, z: jnp.sum(z))(lambda a, z0: z0)(1.0, ones(3))
kernel_size: fp.monotone_init(K, 2, 4)
margin: fp.monotone_weight(fp.monotone_init(K, 3), margin=0.0)
image_shape: fp.monotone_weight(fp.monotone_init(K, 2, 3));
    fp.monotone_weight(fp.monotone_init(K, 2, 3), image_shape=(2, 9))
images: fp.monotone_equilibrium(fp.monotone_weight(fp.monotone_init(K, 2, 3), image_shape=(4, 5)), ones((4, 2, 2)));
    fp.monotone_equilibrium(fp.monotone_weight(fp.monotone_init(K, 2, 3), image_shape=(4, 5)), ones((5, 2)))
"""
    ),
    "training": (
        r"""
TypeError
step_size: jax.jit(lambda a: uj.attention(step_size=a))(0.5)
alpha: uj.descent_constraints("0.2")
level: uj.tail_mean("0.5")
reference: uj.descent_constraints(0.2, reference="f0")
layer_losses: uj.descent_constraints(0.2)("losses")
multipliers: uj.lagrangian(1.0, ones(3), None)
optimizer: uj.dual_ascent(None); uj.dual_ascent({"a": 0.1})
cap: uj.dual_ascent(sgd, cap="high")
violations: uj.dual_ascent(sgd).init("3")
state: uj.dual_ascent(sgd).update(None, ones(3))
primal: uj.primal_dual(0.1, uj.dual_ascent(sgd), violations=2)
dual: uj.primal_dual(sgd, sgd, violations=2)
integral_gain: uj.nu_pi("0.1")
num_layers: uj.descent_constraints(0.2, num_layers="3")
layer_losses: constrained.column_sums(uj.descent_constraints(0.2, num_layers=2), None, None)
ValueError
alpha: uj.descent_constraints(0.0); uj.descent_constraints(1.0); uj.descent_constraints([0.1, 0.2])(ones(5))
reference: uj.descent_constraints(0.2, reference=-1.0)
layer_losses: uj.descent_constraints(0.2)(ones(1)); uj.descent_constraints(0.2)(np.float32(1.0))
multipliers: uj.lagrangian(1.0, ones(3), ones(2)); uj.lagrangian(1.0, {"gap": 0.5}, {"cap": 1.0});
    uj.held_out_report(D, S, {"layer 2": 0.0})
objective: uj.lagrangian(ones(4), ones(3), np.ones(3))
cap: uj.dual_ascent(sgd, cap=-1.0)
resilience: uj.dual_ascent(sgd, resilience=0.0)
number of constraints: uj.dual_ascent(sgd).init(0)
violations: uj.dual_ascent(sgd).init({}); uj.dual_ascent(sgd).update(uj.dual_ascent(sgd).init(3), ones(2));
    uj.dual_ascent(sgd).update(uj.dual_ascent(sgd).init(1), np.array([np.nan], np.float32))
start: uj.dual_ascent(sgd).init(3, start=-1.0); uj.dual_ascent(sgd).init(3, start=[1.0, 2.0])
kinds: uj.dual_ascent(sgd, kinds="less").init(3); uj.dual_ascent(sgd, kinds={"a": "equal"}).init({"b": ones(2)})
penalty: uj.dual_ascent(None, penalty=inf); uj.lagrangian(1.0, ones(3), ones(3), penalty=0.0)
inequality: uj.constraint_report(1.0, -1.0)
order: uj.primal_dual(sgd, uj.dual_ascent(sgd), violations=2, order="random")
primal_dual: uj.multipliers_of(optax.adam(0.1).init(np.ones(2)))
nu: uj.nu_pi(0.1, nu=1.5)
proportional_gain: uj.proportional_integral(0.1, proportional_gain=-1.0)
num_layers: uj.descent_constraints(0.2, num_layers=0); Transformer(dim=4, num_layers=0).init(K, Y)
layer_losses: constrained.column_sums(D, ones(1), None); constrained.column_sums(D, ones((2, 2, 2)), None)
tolerance: uj.held_out_report(D, S, {"layer 1": 0.0}, tolerance=-1.0)
level: uj.tail_mean(2.0)
x: Transformer(dim="4", num_layers=2).init(K, Y); Transformer(dim=4, num_layers=2).init(K, Y[..., :3])
y: Transformer(dim=4, num_layers=2).init(K, Y[:, :0])
dct: Transformer(dim=4, num_layers=2, rank=9).init(K, Y)
"""
    ),
}
