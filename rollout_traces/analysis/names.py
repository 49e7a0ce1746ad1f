"""Names, advice and tiers of entries: a table of signatures, without code and without numbers.

The first row that fits names the entry. A row fits where one of the entry's series is of one of its columns (`*` stands for any
text; a value stands behind a space, and a column without one is its mean), and direction, shape and kind of part are as it says ("" for any). `what` begins the sentence; the figures follow. Emptying the table changes no score.
"""

from __future__ import annotations

from typing import NamedTuple

from rollout_traces.analysis.diagnosis import DATA, ENVIRONMENT, OUTCOME, SAMPLER, UPDATE


class Signature(NamedTuple):
    """A row of the table.

    Attributes:
        columns: with a value after a space where it is of the share of one.
        direction: up, down or "".
        shape: of the movement, or "".
        part: the column of the part, or "".
        tier: index of the tiers.
        what: what it is called.
        advice: what to do next.
    """

    columns: tuple[str, ...]
    direction: str
    shape: str
    part: str
    tier: int
    what: str
    advice: str


SIGNATURES: tuple[Signature, ...] = (
    Signature(("engine *",), "", "went", "", SAMPLER, "an engine went", "Look at its logs."),
    Signature(("extra/*worker *", "extra/*host *", "extra/*node *"), "", "went", "", SAMPLER, "a worker went", "Look at its logs."),
    Signature(("engine *",), "", "came", "", SAMPLER, "an engine came", "Compare its settings with the others'."),
    Signature(("flags mask_leak", "flags mask_shifted"), "up", "", "", DATA, "tokens that the policy did not write are trained", "Look at the loss mask of these rollouts, turn by turn."),
    Signature(("flags untrained_sampled", "flags eos_untrained", "flags row_masked"), "up", "", "", DATA, "sampled tokens are left out of the loss", "Look at the loss mask of these rollouts, turn by turn."),
    Signature(("flags template_drift", "flags retokenized", "flags prefix_broken", "flags bos_anomaly"), "up", "", "", DATA, "what is trained is not what was sampled, token for token", "Compare the chat template and tokenizer of trainer and sampler."),
    Signature(("flags nonfinite",), "up", "", "", DATA, "values are not finite", "Open these rollouts and look at the log-probabilities."),
    Signature(("flags logprob_out_of_range",), "up", "", "", DATA, "log-probabilities are none", "Compare what this engine returns with what the trainer computes."),
    Signature(("group/prompts several",), "up", "", "", DATA, "groups hold several prompts", "Look at how rollouts are put into groups: advantages compare answers to different prompts."),
    Signature(("group/prompts again",), "up", "", "", DATA, "the same prompts are asked again and again", "Look at the data loader: is the data short, or drawn with replacement?"),
    Signature(("source *",), "", "", "", DATA, "the mix of sources changed", "Compare the data loader's settings before and after."),
    Signature(("ground_truth *", "prompt *", "system *", "tools *"), "", "", "", DATA, "the data changed", "Compare the data files of before and after."),
    Signature(("n_prompt",), "", "", "", DATA, "prompts have another length", "Compare prompts, system prompts and tool schemas of before and after."),
    Signature(("group/size_mean",), "", "", "", DATA, "groups have another size", "Compare how many samples a prompt gets, and what is filtered."),
    Signature(("reward_status *",), "up", "", "", ENVIRONMENT, "the reward function fails", "Look at its logs and its timeouts."),
    Signature(("error_signatures *",), "up", "", "", ENVIRONMENT, "tools fail", "Read the tool results of these rollouts."),
    Signature(("*tool_errors", "flags tool_error"), "up", "", "", ENVIRONMENT, "tools fail", "Read the tool results of these rollouts."),
    Signature(("tool_results *",), "up", "", "", ENVIRONMENT, "a phrase is more often in tool results", "Read the tool results of these rollouts: do the tools still work?"),
    Signature(("tool_results *",), "down", "", "", ENVIRONMENT, "a phrase is less often in tool results", "Read tool results of before and after."),
    Signature(("tool_names *",), "", "went", "", ENVIRONMENT, "a tool is no longer called", "Look at the tool schemas of the prompts."),
    Signature(("tool_names *", "n_tool_calls"), "", "", "", ENVIRONMENT, "tools are called otherwise", "Look at the tool schemas of the prompts."),
    Signature(("flags tool_call_unparsed",), "up", "", "", ENVIRONMENT, "tool calls cannot be parsed", "Compare the parser with the template."),
    Signature(("discard_reason none",), "down", "", "", ENVIRONMENT, "more rollouts are discarded", "Look at what the filter says of them, and compare its settings."),
    Signature(("discard_reason none",), "up", "", "", ENVIRONMENT, "fewer rollouts are discarded", "Compare the filter's settings."),
    Signature(("discard_reason *",), "up", "", "", ENVIRONMENT, "more rollouts are discarded", "Look at what the filter says of them, and compare its settings."),
    Signature(("discard_reason *",), "down", "", "", ENVIRONMENT, "fewer rollouts are discarded", "Compare the filter's settings."),
    Signature(("correlation/success",), "down", "", "", ENVIRONMENT, "reward and success part ways", "Open rollouts of these groups: which of the two is wrong?"),
    Signature(("correlation/advantage",), "down", "", "", DATA, "advantages no longer go with rewards", "Look at how advantages are computed and joined to their rollouts."),
    Signature(("staleness_max", "flags stale"), "up", "", "", SAMPLER, "samples are older", "Look at the synchronisation of weights and at the queue."),
    Signature(("mismatch_abs_max", "mismatch_k3", "mismatch_k1", "flags logprob_mismatch", "log_ratio_sum"), "up", "", "engine", SAMPLER, "an engine samples with other probabilities than the trainer computes", "Compare this engine's weights, temperature and precision with the others'."),
    Signature(("mismatch_abs_max", "mismatch_k3", "mismatch_k1", "flags logprob_mismatch", "log_ratio_sum"), "up", "", "", SAMPLER, "trainer and sampler compute other probabilities", "Compare weights, temperature, precision and template of trainer and sampler."),
    Signature(("flags duplicate_completions",), "up", "", "", SAMPLER, "completions of a prompt are the same", "Look at the sampler's seed and temperature."),
    Signature(("entropy", "*entropy"), "down", "", "", SAMPLER, "the policy became more certain", "Look at temperature, clipping and the KL term."),
    Signature(("entropy", "*entropy"), "up", "", "", SAMPLER, "the policy became less certain", "Look at temperature, clipping and the KL term."),
    Signature(("mean_logprob",), "up", "", "", SAMPLER, "the policy became more certain", "Look at temperature, clipping and the KL term."),
    Signature(("mean_logprob",), "down", "", "", SAMPLER, "the policy became less certain", "Look at temperature, clipping and the KL term."),
    Signature(("flags empty_completion",), "up", "", "", SAMPLER, "answers are empty", "Open some of them: what did the engine return?"),
    Signature(("flags repetition",), "up", "", "", SAMPLER, "answers repeat themselves", "Read how these rollouts end, and compare temperature and penalties."),
    Signature(("stop_reason stop",), "down", "", "", SAMPLER, "fewer answers end by themselves", "Compare the limit, and read how these rollouts end."),
    Signature(("stop_reason length", "flags truncated"), "up", "", "", SAMPLER, "answers are cut off", "Compare the limit, and read how these rollouts end."),
    Signature(("written/refusal refusal",), "up", "", "", OUTCOME, "the policy refuses", "Read these rollouts: which prompts does it refuse?"),
    Signature(("written/script *", "written/language *"), "", "", "", OUTCOME, "answers are in another language", "Read these rollouts: does a reward see the language?"),
    Signature(("written/answer *",), "", "", "", OUTCOME, "answers have another form", "Read how rollouts end, and compare the parser of answers."),
    Signature(("written *",), "up", "", "", OUTCOME, "a phrase is written more often", "Read these rollouts: does a reward pay for it?"),
    Signature(("written *",), "down", "", "", OUTCOME, "a phrase is written less often", "Read rollouts of before and after."),
    Signature(("component/*",), "", "", "", ENVIRONMENT, "a component of the reward changed", "Open rollouts of before and after and compare what this component gave."),
    Signature(("reward", "success"), "down", "", "", OUTCOME, "the reward falls", "Open rollouts of before and after and compare."),
    Signature(("*lr", "*learning_rate"), "", "", "", UPDATE, "the learning rate changed", "Compare its schedule."),
    Signature(("*loss",), "", "spike", "", UPDATE, "the loss jumped", "Look at the rollouts that carry the update of this step."),
    Signature(("*grad_norm",), "up", "spike", "", UPDATE, "the gradient jumped", "Look at the rollouts that carry the update of this step."),
    Signature(("*grad_norm",), "up", "", "", UPDATE, "the gradient grows", "Compare learning rate and clipping, and look at the rollouts that carry the update."),
    Signature(("*kl",), "up", "", "", UPDATE, "the policy moves away from its reference", "Compare the KL term's settings."),
    Signature(("update/top3_share",), "up", "", "", UPDATE, "few rollouts carry the update", "Look at the rollouts with the largest share of the update."),
    Signature(("update_share", "advantage", "clip_share", "flags dominates_update"), "", "", "", UPDATE, "the update is distributed otherwise", "Look at the rollouts with the largest share of the update."),
    Signature(("eval*/reward", "eval*/success", "eval*/component/*"), "down", "", "", OUTCOME, "the evaluation falls", "Open Flips between the two evaluations."),
    Signature(("eval*/reward", "eval*/success", "eval*/component/*"), "up", "", "", OUTCOME, "the evaluation rises", "Open Flips between the two evaluations."),
    Signature(("n_sampled",), "up", "", "", OUTCOME, "answers are longer", "Compare answers of before and after, and the limit."),
    Signature(("n_sampled",), "down", "", "", OUTCOME, "answers are shorter", "Compare answers of before and after."),
    Signature(("stop_reason length", "flags truncated"), "down", "", "", OUTCOME, "fewer answers are cut off", "Compare the limit, and answers of before and after."),
    Signature(("timing/*",), "up", "", "", ENVIRONMENT, "it takes longer", "Look at the load of the environment and the engines."),
    Signature(("answered",), "down", "", "", OUTCOME, "answers are not found", "Read how these rollouts end, and compare the parser of answers."),
    Signature(("group/tie_share", "flags tied_group"), "up", "", "", OUTCOME, "more groups teach nothing", "Look at what their rewards have in common."),
    Signature(("reward", "success"), "up", "", "", OUTCOME, "the reward rises", "Open rollouts of before and after and compare: better, or only better paid?"),
)  # fmt: skip
"""The table, in the order in which it is read."""
