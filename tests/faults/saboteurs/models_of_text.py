"""Models of tokens: an encoder, a reranker, T5's encoder and a recurrent tagger.

B = batch, S = sequence, H = heads, D = width.
"""

import onnx

from services.contracts.model.recipe import OutputRecipe
from tests.faults.saboteurs.specimen import TOKENS, Specimen, Weights

WIDTH, HEADS, VOCABULARY = 64, 4, 300
# As many as the largest request, rounded up to a power of two, has.
_PLACES_KNOWN = 128
_TOKENS = "int64[batch, seq] ids, int64[batch, seq] mask"
_MASK = """
    mask_f = Cast <to = 1> (mask) closed = Sub (one, mask_f) low = Mul (closed, lowest)
    bias = Unsqueeze (low, axes12)"""
_PLACES = """
    count = Shape <start = 1, end = 2> (ids) length = Squeeze (count)
    places = Range (zero_i, length, one_i)"""


def _constants(width: int) -> dict[str, object]:
    return {
        "one": 1.0,
        "lowest": -1e4,
        "axes12": [1, 2],
        "axis0": [0],
        "axis1": [1],
        "axis2": [2],
        "zero_i": 0,
        "one_i": 1,
        "root": (width / HEADS) ** 0.5,
        "split": [0, 0, HEADS, width // HEADS],
        "joined": [0, 0, width],
    }


def _heads(p: str, x: str, bias: str, is_scaled: bool) -> str:
    """Attention over all positions; `bias` is added to its scores."""
    text = ""
    for name in "qkv":
        text += f"""
    {p}{name}m = MatMul ({x}, {p}w{name}) {p}{name}a = Add ({p}{name}m, {p}b{name})
    {p}{name}r = Reshape ({p}{name}a, split)
    {p}{name} = Transpose <perm = [0, 2, {"3, 1" if name == "k" else "1, 3"}]> ({p}{name}r)"""
    scaled = f"{p}qk = Div ({p}raw, root)" if is_scaled else f"{p}qk = Identity ({p}raw)"
    return f"""{text}
    {p}raw = MatMul ({p}q, {p}k) {scaled} {p}biased = Add ({p}qk, {bias})
    {p}weights = Softmax <axis = -1> ({p}biased) {p}mixed = MatMul ({p}weights, {p}v)
    {p}back = Transpose <perm = [0, 2, 1, 3]> ({p}mixed) {p}one = Reshape ({p}back, joined)
    {p}om = MatMul ({p}one, {p}wo) {p}o = Add ({p}om, {p}bo)"""


def _layer(p: str, x: str) -> str:
    """A layer as BERT has it, from `x` to `{p}out`."""
    return f"""{_heads(p, x, "bias", is_scaled=True)}
    {p}s1 = Add ({x}, {p}o) {p}n1 = LayerNormalization <axis = -1> ({p}s1, {p}g1, {p}h1)
    {p}um = MatMul ({p}n1, {p}wu) {p}u = Add ({p}um, {p}bu) {p}act = Gelu ({p}u)
    {p}dm = MatMul ({p}act, {p}wd) {p}d = Add ({p}dm, {p}bd) {p}s2 = Add ({p}n1, {p}d)
    {p}out = LayerNormalization <axis = -1> ({p}s2, {p}g2, {p}h2)"""


def _draw_layer(weights: Weights, p: str, width: int) -> None:
    for name in "qkvo":
        weights.normal(f"{p}w{name}", width, width)
        weights.normal(f"{p}b{name}", width, scale=0.3)
    weights.normal(f"{p}wu", width, 2 * width)
    weights.normal(f"{p}bu", 2 * width, scale=0.3)
    weights.normal(f"{p}wd", 2 * width, width)
    weights.normal(f"{p}bd", width, scale=0.3)
    for norm in "12":
        weights.around_one(f"{p}g{norm}", width)
        weights.normal(f"{p}h{norm}", width, scale=0.3)


def _bert(
    seed: int, inputs: str, output: str, embedded: str, head: str, width: int = WIDTH
) -> onnx.ModelProto:
    weights = Weights(seed)
    weights.normal("words", VOCABULARY, width, scale=1.0)
    weights.normal("positions", _PLACES_KNOWN, width, scale=0.5)
    weights.normal("types_table", 2, width, scale=0.5)
    weights.normal("wp", width, width)
    weights.normal("bp", width, scale=0.3)
    weights.normal("wl", width, 1)
    _draw_layer(weights, "a", width)
    _draw_layer(weights, "b", width)
    graph = f"""g ({inputs}) => ({output}) {{ {_PLACES} {_MASK}
    word = Gather (words, ids) place = Gather (positions, places) placed = Add (word, place)
    {embedded} {_layer("a", "x")} {_layer("b", "aout")} {head} }}"""
    used = {name: array for name, array in weights.arrays.items() if name in graph}
    weights.arrays = used
    return weights.model(graph, **{k: v for k, v in _constants(width).items() if k in graph})


def encoder(seed: int) -> onnx.ModelProto:
    """BERT with the mean of its valid tokens."""
    head = """mask_c = Unsqueeze (mask_f, axis2) kept = Mul (bout, mask_c)
    total = ReduceSum <keepdims = 0> (kept, axis1)
    num = ReduceSum <keepdims = 0> (mask_c, axis1) embedding = Div (total, num)"""
    output = f"float[batch, {WIDTH}] embedding"
    return _bert(seed, _TOKENS, output, "x = Identity (placed)", head)


def reranker(seed: int) -> onnx.ModelProto:
    """BERT that scores a pair of texts by its first token."""
    embedded = "typed = Gather (types_table, types) x = Add (placed, typed)"
    head = """first = Gather <axis = 1> (bout, zero_i) pm = MatMul (first, wp)
    p = Add (pm, bp) pooled = Tanh (p) logit = MatMul (pooled, wl)"""
    inputs = f"{_TOKENS}, int64[batch, seq] types"
    # Of half as many numbers a logit errs by a fifth in eight bits, more than a proof allows.
    return _bert(seed, inputs, "float[batch, 1] logit", embedded, head, width=2 * WIDTH)


_BUCKETS = """
    rows = Unsqueeze (places, axis0) columns = Unsqueeze (places, axis1)
    far = Sub (rows, columns) zero64 = Cast <to = 7> (zero_i) is_after = Greater (far, zero64)
    after = Cast <to = 7> (is_after) half = Mul (after, sixteen) n = Abs (far)
    is_near = Less (n, eight) n_f = Cast <to = 1> (n) n_1 = Max (n_f, one)
    ratio = Div (n_1, eight_f) ln = Log (ratio) part = Div (ln, ln12) steps = Mul (part, eight_f)
    whole = Cast <to = 7> (steps) beyond = Add (whole, eight) last = Min (beyond, fifteen)
    near_or_far = Where (is_near, n, last) bucket = Add (half, near_or_far)
    of_pairs = Gather (distances, bucket) by_head = Transpose <perm = [2, 0, 1]> (of_pairs)
    one_row = Unsqueeze (by_head, axis0) pair_bias = Add (one_row, bias)"""


def t5(seed: int) -> onnx.ModelProto:
    """T5's encoder: distances in buckets, norms without a mean, no scale, no position."""
    weights = Weights(seed)
    weights.normal("words", VOCABULARY, WIDTH, scale=1.0)
    weights.normal("distances", 32, HEADS, scale=1.0)
    layers = ""
    for p, x in (("a", "x"), ("b", "aout")):
        _draw_layer(weights, p, WIDTH)
        # T5 trains its queries to be small, as nothing divides their scores.
        weights.arrays[f"{p}wq"] *= (WIDTH / HEADS) ** -0.5
        layers += f"""
    {p}n1 = RMSNormalization <axis = -1> ({x}, {p}g1)
    {_heads(p, f"{p}n1", "pair_bias", is_scaled=False)} {p}s1 = Add ({x}, {p}o)
    {p}n2 = RMSNormalization <axis = -1> ({p}s1, {p}g2) {p}um = MatMul ({p}n2, {p}wu)
    {p}act = Relu ({p}um) {p}dm = MatMul ({p}act, {p}wd) {p}out = Add ({p}s1, {p}dm)"""
    graph = f"""g ({_TOKENS}) => (float[batch, seq, {WIDTH}] hidden) {{ {_PLACES} {_MASK}
    x = Gather (words, ids) {_BUCKETS} {layers}
    hidden = RMSNormalization <axis = -1> (bout, ag1) }}"""
    constants = {**_constants(WIDTH), "sixteen": 16, "eight": 8, "eight_f": 8.0, "ln12": 2.5257286}
    constants["fifteen"] = 15
    unused = ("bu", "bd", "h1", "h2")
    weights.arrays = {k: v for k, v in weights.arrays.items() if k[1:] not in unused}
    return weights.model(graph, 23, **{k: v for k, v in constants.items() if k in graph})


def tagger(seed: int) -> onnx.ModelProto:
    """A label for each token, by an LSTM both ways."""
    weights, hidden = Weights(seed), 16
    weights.normal("words", VOCABULARY, WIDTH, scale=1.0)
    weights.normal("w", 2, 4 * hidden, WIDTH)
    weights.normal("r", 2, 4 * hidden, hidden)
    weights.normal("b", 2, 8 * hidden, scale=0.3)
    weights.normal("wl", 2 * hidden, 9)
    weights.normal("bl", 9, scale=0.3)
    graph = f"""g (int64[batch, seq] ids) => (float[batch, seq, 9] labels) {{
    x = Gather (words, ids) steps = Transpose <perm = [1, 0, 2]> (x)
    both, last_h, last_c = LSTM <hidden_size = {hidden}, direction = "bidirectional">
    (steps, w, r, b) beside = Transpose <perm = [2, 0, 1, 3]> (both) flat = Reshape (beside, joined)
    m = MatMul (flat, wl) labels = Add (m, bl) }}"""
    return weights.model(graph, joined=[0, 0, 2 * hidden])


_VALID = {"hidden": OutputRecipe(valid_where="mask")}
TEXT = {
    "encoder": Specimen(make=encoder, sizes=TOKENS),
    "reranker": Specimen(make=reranker, sizes=TOKENS),
    "t5": Specimen(make=t5, sizes=TOKENS, outputs=_VALID),
    "tagger": Specimen(make=tagger, sizes={"batch": (1, 4, 8), "seq": (1, 12, 40)}),
}
