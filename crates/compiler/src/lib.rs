//! From a model's graph and a device's abilities to a plan: the just-in-time pipeline, as a pure function.
//!
//! ```text
//! Graph ─tail─► simplify ─► select (fusion: regions) ─► emit (kernels) ─► schedule (buffers, barriers) ─► verify ─► Plan
//! ```
//!
//! Fusion is instruction selection: [`kernels::TEMPLATES`] is a table of patterns with emitters, the most specific
//! first and one-op rows at the bottom. A new kernel, fused or not, is one file and one row.

mod cost;
mod cut;
pub mod kernels;
mod persistent;
mod prune;
mod schedule;
mod select;
mod simplify;
mod template;

pub use cut::{Cut, Cuts, GENERATION, NoCut, Tunable, Tuned, Use};
pub use persistent::{PersistentError, persistent};
pub use select::{Region, select};
pub use template::{Access, Ctx, Emission, LaunchSketch, Operand, Template};

use std::sync::Arc;
use zinc_ir::device::Caps;
use zinc_ir::graph::{Graph, NodeId};
use zinc_ir::plan::{self, ActPrecision, Bucket, InputLayout, KvLayout, KvTypes, PAGE_TOKENS, Plan, PlanError};

/// What the user decides; everything else follows from graph, caps and bucket.
#[derive(Clone, Debug, PartialEq)]
pub struct Choices {
    /// Precision of matrix-product inputs.
    pub act: ActPrecision,
    /// Use fused templates. Off, every region is one op: slow, and the reference for fusion tests.
    pub fuse: bool,
    /// Use cooperative matrices where the device has them.
    pub matrices: bool,
    /// The same kernels, with sums in the same order, for every number of rows and every context: a token's logits then
    /// have the same bits alone, in any batch, and however its prompt was cut into steps. Those are the kernels for many
    /// rows, with inputs of products that are not quantized; `tuned` is ignored.
    pub invariant: bool,
    /// Cuts to use instead of what the rules say.
    pub tuned: Arc<Tuned>,
}

impl Default for Choices {
    fn default() -> Choices {
        Choices { act: ActPrecision::F32, fuse: true, matrices: true, invariant: false, tuned: Arc::default() }
    }
}

/// Why a graph cannot be compiled for a device.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// No template covers an operation in this form.
    #[error("no kernel for {op} (node {node}) on this device: {why}")]
    Unsupported {
        /// The operation, in text.
        op: String,
        /// Node number.
        node: u32,
        /// What is missing.
        why: String,
    },
    /// The bucket makes no sense: a bug of the caller.
    #[error("bad bucket: {0}")]
    BadBucket(&'static str),
    /// Quantized K and V of heads that are not whole blocks.
    #[error(
        "K and V in {types} need heads of whole blocks of 32 elements, but this model's have {head_dim}; use f16 \
         (--cache-type-k, --cache-type-v)"
    )]
    KvHead {
        /// Types of K and V.
        types: KvTypes,
        /// Elements of a head.
        head_dim: u32,
    },
    /// Regions need each other's values: a bug of a template.
    #[error("templates have cut the graph into regions that wait for each other, please report this")]
    Circular,
    /// The finished plan failed its proof: a bug of a template.
    #[error("the plan is unsafe, please report this: {0}")]
    Unsafe(#[from] PlanError),
    /// A kernel failed verification: a bug of a template.
    #[error("kernel {kernel} is malformed, please report this: {detail}")]
    BadKernel {
        /// Its name.
        kernel: String,
        /// What the verifier says.
        detail: String,
    },
}

/// Makes the plan of one bucket.
pub fn compile(
    graph: &Arc<Graph>,
    kv: &Arc<KvLayout>,
    bucket: Bucket,
    caps: &Caps,
    choices: &Choices,
) -> Result<Plan, CompileError> {
    check_bucket(&bucket)?;
    check_kv(kv)?;
    let (graph, output) = simplified(graph, &bucket, caps, choices);
    let inputs = InputLayout::new(&graph, bucket);
    let ctx = Ctx { graph: &graph, caps, bucket, kv, choices, output, lists_cuts: false };
    let regions = select(&ctx)?;
    let emissions = regions.iter().map(|r| template::emit(&ctx, r)).collect::<Result<Vec<_>, _>>()?;
    let plan = schedule::schedule(&ctx, &inputs, regions, emissions)?;
    for kernel in &plan.kernels {
        zinc_ir::kernel::verify(kernel)
            .map_err(|e| CompileError::BadKernel { kernel: kernel.name.clone(), detail: e.to_string() })?;
    }
    plan::verify(&plan)?;
    Ok(plan)
}

/// The graph as it is cut into regions, and the value that leaves the device.
fn simplified(graph: &Arc<Graph>, bucket: &Bucket, caps: &Caps, choices: &Choices) -> (Arc<Graph>, Option<NodeId>) {
    let ended = (bucket.tail == plan::Tail::Hidden).then(|| Arc::new(graph.until_hidden()));
    let graph = simplify::with_quantized_inputs(ended.as_ref().unwrap_or(graph), bucket, caps, choices);
    simplify::with_tail(&graph, bucket)
}

/// What can be chosen in the plan that [`compile`] makes of the same arguments, in the order of its launches.
pub fn tunables(
    graph: &Arc<Graph>,
    kv: &Arc<KvLayout>,
    bucket: Bucket,
    caps: &Caps,
    choices: &Choices,
) -> Result<Vec<Tunable>, CompileError> {
    check_bucket(&bucket)?;
    let (graph, output) = simplified(graph, &bucket, caps, choices);
    let ctx = Ctx { graph: &graph, caps, bucket, kv, choices, output, lists_cuts: true };
    let mut found: Vec<Tunable> = vec![];
    for region in select(&ctx)? {
        let Some(cuts) = template::emit(&ctx, &region)?.cuts else { continue };
        let (node, bytes) = (region.last(), cost::of_region(&ctx, &region).0.bytes);
        let here = Use { node, layer: graph.node(node).layer, bytes };
        match found.iter_mut().find(|t| t.cuts.key == cuts.key) {
            Some(known) => known.uses.push(here),
            None => found.push(Tunable { cuts, uses: vec![here] }),
        }
    }
    Ok(found)
}

/// Can K and V be kept in these types?
pub fn check_kv(kv: &KvLayout) -> Result<(), CompileError> {
    match kv.unsuitable_head() {
        Some(head_dim) => Err(CompileError::KvHead { types: kv.types, head_dim }),
        None => Ok(()),
    }
}

fn check_bucket(bucket: &Bucket) -> Result<(), CompileError> {
    let Bucket { tokens, outputs, context, sequences, .. } = *bucket;
    if tokens == 0 || sequences == 0 {
        return Err(CompileError::BadBucket("it has no rows"));
    }
    if outputs > tokens {
        return Err(CompileError::BadBucket("more output rows than token rows"));
    }
    if matches!(bucket.tail, plan::Tail::Best(0) | plan::Tail::Sample(0)) {
        return Err(CompileError::BadBucket("the best 0 logits"));
    }
    if let plan::Tail::Mixed { logits, .. } = bucket.tail
        && outputs > 0
        && (logits == 0 || logits > outputs)
    {
        return Err(CompileError::BadBucket("logits of no output row, or of more than there are"));
    }
    if context == 0 || !context.is_multiple_of(PAGE_TOKENS) {
        return Err(CompileError::BadBucket("the context is not a whole number of pages"));
    }
    Ok(())
}
