"""Names, advice and tiers of entries: a table of signatures, without code and without numbers.

The first row that fits names the entry. A row fits where one of the entry's series is of one of its columns (`*` stands for any
text; a value stands behind a space, and a column without one is its mean), and direction, shape and kind of part are as it says (any where nothing stands). `what` begins the sentence; the figures follow. Emptying the table changes no score.
"""

from __future__ import annotations

from typing import NamedTuple

from rollout_traces.analysis.diagnosis import TIERS


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


ROWS = """
engine * | | went | | sampler | an engine went | Look at its logs.
extra/*worker *, extra/*host *, extra/*node * | | went | | sampler | a worker went | Look at its logs.
engine * | | came | | sampler | an engine came | Compare its settings with the others'.
flags mask_leak, flags mask_shifted | up | | | data | tokens that the policy did not write are trained | Look at the loss mask of these rollouts, turn by turn.
flags untrained_sampled, flags eos_untrained, flags row_masked | up | | | data | sampled tokens are left out of the loss | Look at the loss mask of these rollouts, turn by turn.
flags template_drift, flags retokenized, flags prefix_broken, flags bos_anomaly | up | | | data | what is trained is not what was sampled, token for token | Compare the chat template and tokenizer of trainer and sampler.
flags nonfinite | up | | | data | values are not finite | Open these rollouts and look at the log-probabilities.
flags logprob_out_of_range | up | | | data | log-probabilities are none | Compare what this engine returns with what the trainer computes.
group/prompts several | up | | | data | groups hold several prompts | Look at how rollouts are put into groups: advantages compare answers to different prompts.
group/prompts again | up | | | data | the same prompts are asked again and again | Look at the data loader: is the data short, or drawn with replacement?
source * | | | | data | the mix of sources changed | Compare the data loader's settings before and after.
ground_truth *, prompt *, system *, tools * | | | | data | the data changed | Compare the data files of before and after.
n_prompt, prompt_characters | | | | data | prompts have another length | Compare prompts, system prompts and tool schemas of before and after.
group/size_mean | | | | data | groups have another size | Compare how many samples a prompt gets, and what is filtered.
reward_status * | up | | | environment | the reward function fails | Look at its logs and its timeouts.
error_signatures * | up | | | environment | tools fail | Read the tool results of these rollouts.
*tool_errors, flags tool_error | up | | | environment | tools fail | Read the tool results of these rollouts.
tool_results * | up | | | environment | a phrase is more often in tool results | Read the tool results of these rollouts: do the tools still work?
tool_results * | down | | | environment | a phrase is less often in tool results | Read tool results of before and after.
tool_names * | | went | | environment | a tool is no longer called | Look at the tool schemas of the prompts.
tool_names *, n_tool_calls | | | | environment | tools are called otherwise | Look at the tool schemas of the prompts.
flags tool_call_unparsed | up | | | environment | tool calls cannot be parsed | Compare the parser with the template.
discard_reason none | down | | | environment | more rollouts are discarded | Look at what the filter says of them, and compare its settings.
discard_reason none | up | | | environment | fewer rollouts are discarded | Compare the filter's settings.
discard_reason * | up | | | environment | more rollouts are discarded | Look at what the filter says of them, and compare its settings.
discard_reason * | down | | | environment | fewer rollouts are discarded | Compare the filter's settings.
correlation/success | down | | | environment | reward and success part ways | Open rollouts of these groups: which of the two is wrong?
correlation/advantage | down | | | data | advantages no longer go with rewards | Look at how advantages are computed and joined to their rollouts.
staleness_max, flags stale | up | | | sampler | samples are older | Look at the synchronisation of weights and at the queue.
mismatch_abs_max, mismatch_k3, mismatch_k1, flags logprob_mismatch, log_ratio_sum | up | | engine | sampler | an engine samples with other probabilities than the trainer computes | Compare this engine's weights, temperature and precision with the others'.
mismatch_abs_max, mismatch_k3, mismatch_k1, flags logprob_mismatch, log_ratio_sum | up | | | sampler | trainer and sampler compute other probabilities | Compare weights, temperature, precision and template of trainer and sampler.
flags duplicate_completions | up | | | sampler | completions of a prompt are the same | Look at the sampler's seed and temperature.
entropy, *entropy | down | | | sampler | the policy became more certain | Look at temperature, clipping and the KL term.
entropy, *entropy | up | | | sampler | the policy became less certain | Look at temperature, clipping and the KL term.
mean_logprob | up | | | sampler | the policy became more certain | Look at temperature, clipping and the KL term.
mean_logprob | down | | | sampler | the policy became less certain | Look at temperature, clipping and the KL term.
flags empty_completion | up | | | sampler | answers are empty | Open some of them: what did the engine return?
flags repetition | up | | | sampler | answers repeat themselves | Read how these rollouts end, and compare temperature and penalties.
stop_reason stop | down | | | sampler | fewer answers end by themselves | Compare the limit, and read how these rollouts end.
stop_reason length, flags truncated | up | | | sampler | answers are cut off | Compare the limit, and read how these rollouts end.
written/refusal refusal | up | | | outcome | the policy refuses | Read these rollouts: which prompts does it refuse?
written/script *, written/language * | | | | outcome | answers are in another language | Read these rollouts: does a reward see the language?
written/answer * | | | | outcome | answers have another form | Read how rollouts end, and compare the parser of answers.
written * | up | | | outcome | a phrase is written more often | Read these rollouts: does a reward pay for it?
written * | down | | | outcome | a phrase is written less often | Read rollouts of before and after.
success | down | | | outcome | the reward falls | Open rollouts of before and after and compare.
component/* | | | | environment | a component of the reward changed | Open rollouts of before and after and compare what this component gave.
reward, success | down | | | outcome | the reward falls | Open rollouts of before and after and compare.
*lr, *learning_rate | | | | update | the learning rate changed | Compare its schedule.
*loss | | spike | | update | the loss jumped | Look at the rollouts that carry the update of this step.
*grad_norm | up | spike | | update | the gradient jumped | Look at the rollouts that carry the update of this step.
*grad_norm | up | | | update | the gradient grows | Compare learning rate and clipping, and look at the rollouts that carry the update.
*kl | up | | | update | the policy moves away from its reference | Compare the KL term's settings.
update/top3_share | up | | | update | few rollouts carry the update | Look at the rollouts with the largest share of the update.
update_share, advantage, clip_share, flags dominates_update | | | | update | the update is distributed otherwise | Look at the rollouts with the largest share of the update.
eval*/reward, eval*/success, eval*/component/* | down | | | outcome | the evaluation falls | Open Flips between the two evaluations.
eval*/reward, eval*/success, eval*/component/* | up | | | outcome | the evaluation rises | Open Flips between the two evaluations.
n_sampled, written_characters | up | | | outcome | answers are longer | Compare answers of before and after, and the limit.
n_sampled, written_characters | down | | | outcome | answers are shorter | Compare answers of before and after.
stop_reason length, flags truncated | down | | | outcome | fewer answers are cut off | Compare the limit, and answers of before and after.
timing/* | up | | | environment | it takes longer | Look at the load of the environment and the engines.
answered | down | | | outcome | answers are not found | Read how these rollouts end, and compare the parser of answers.
group/tie_share, flags tied_group | up | | | outcome | more groups teach nothing | Look at what their rewards have in common.
reward, success | up | window | | outcome | the reward rises for a while | Open rollouts of the last of these steps and of those after: was what was learned lost, or was it only better paid?
reward, success | up | | | outcome | the reward rises | Open rollouts of before and after and compare: better, or only better paid?
"""
"""The table: columns, direction, shape, part, tier, what it is called, what to do next."""


def _signature(row: str) -> Signature:
    columns, direction, shape, part, tier, what, advice = (cell.strip() for cell in row.split("|"))
    place = next(at for at, name in enumerate(TIERS) if name.startswith(tier))
    return Signature(tuple(columns.split(", ")), direction, shape, part, place, what, advice)


SIGNATURES = tuple(map(_signature, ROWS.strip().splitlines()))
"""Its rows, in the order in which they are read."""
