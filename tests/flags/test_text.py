from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rollout_traces.flags import text
from rollout_traces.flags.detect import TracedRow, flag_population, flag_row
from rollout_traces.flags.text import (
    FILLED,
    LONGEST_PERIOD,
    WINDOW,
    Loop,
    _is_repetition,
    code_points,
    script_changes,
    script_codes,
    token_at,
)
from rollout_traces.model.transcript import TokenTrack
from tests.builders import make_transcript
from tests.flags.conftest import check_found, decoder_of, faults_of, tiny_steps
from tests.flags.steps import find_flags, population_of


@faults_of(text)
@pytest.mark.parametrize("origin", ["made up", "desk"])
def test_a_planted_fault_is_found_where_it_is_and_on_no_other_row(fault, origin):
    check_found(fault, tiny_steps()[origin], decoder_of("tiny"))


def write(step, text: str, row: int = 5) -> tuple[int, int]:
    """Lets the policy write a text before its last end marker."""
    at = step.rows[row].runs()[-1][1] - 1
    ids = step.encode(text)
    step.rows[row].splice(at, at, ids, sampled=True)
    return at, at + len(ids)


def body(step, text: str, row: int = 5) -> None:
    """Replaces the body of the last assistant turn."""
    start, stop = step.rows[row].runs()[-1]
    step.rows[row].splice(start, stop - 1, step.encode(text), sampled=True)


@pytest.fixture
def find(step, decoder, tokenizer):
    """The flags of one name on row 5 of the changed step."""

    def look(name: str, **options):
        return find_flags(step.batch(), decoder, tokenizer, only=[name], rows=[5], **options).flags[5]

    return look


class TestTruncated:
    @pytest.mark.parametrize("reason", ["length", "max_tokens", "MAX-TOKENS", "max_new_tokens"])
    def test_every_name_of_the_length_limit_counts(self, step, find, reason):
        step.rows[5].values["stop_reasons"] = reason
        assert len(find("truncated")) == 1

    @pytest.mark.parametrize("reason", ["stop", "eos", None, "abort"])
    def test_other_reasons_do_not(self, step, find, reason):
        step.rows[5].values["stop_reasons"] = reason
        assert not find("truncated")


class TestNoEndMarker:
    @pytest.mark.parametrize(("reason", "expected"), [(None, 1), ("stop", 1), ("length", 0), ("abort", 0)])
    def test_a_stop_reason_can_explain_it(self, step, find, reason, expected):
        row = step.rows[5]
        row.splice(row.runs()[-1][1] - 1, len(row), [], sampled=False)
        row.values["stop_reasons"] = reason
        assert len(find("no_end_marker")) == expected

    def test_another_special_token_at_the_end_is_an_end(self, step, find):
        row = step.rows[5]
        row.splice(row.runs()[-1][1] - 1, len(row), step.encode("<|endoftext|>"), sampled=True)
        assert not find("no_end_marker")


class TestRepetition:
    def test_the_shortest_period_is_named(self, step, find):
        start, stop = step.rows[5].runs()[-1]
        step.rows[5].splice(start, stop - 1, step.encode("!") * 200, sampled=True)
        (flag,) = find("repetition")
        assert "The same token repeats" in flag.message
        assert flag.stop - flag.start <= 256

    def test_half_of_the_window_is_not_enough(self, step, find):
        row = step.rows[5]
        at = row.runs()[-1][0]
        varied = list(range(300, 420))
        row.splice(at, row.runs()[-1][1] - 1, [*varied, *([7, 8, 9, 10] * 32)], sampled=True)
        assert not find("repetition")
        assert find("repetition", parameters={"repetition.share": 0.4})

    def test_a_period_longer_than_the_limit_is_not_looked_for(self, step, find):
        start, stop = step.rows[5].runs()[-1]
        step.rows[5].splice(start, stop - 1, list(range(200, 270)) * 4, sampled=True)
        assert not find("repetition")
        assert find("repetition", parameters={"repetition.max_period": 70})

    def test_a_repeating_tool_result_is_not_the_policys(self, step, find):
        row = step.rows[5]
        at = row.runs()[0][1] + 9
        row.splice(at, at, step.encode(" no" * 200), sampled=False)
        row.tracks["loss_mask"][at : at + 200] = 0
        row.tracks["versions"][at : at + 200] = -1
        assert not find("repetition")

    def test_every_row_is_looked_at(self, step):
        for row in range(0, 16, 3):
            write(step, " no" * 200, row)
        found = flag_population(population_of(step.batch()), only=["repetition"])
        assert sorted(found) == [0, 3, 6, 9, 12, 15]


class TestEmptyCompletion:
    def test_a_short_answer_is_not_empty(self, step, find):
        body(step, "4")
        assert not find("empty_completion")

    def test_a_turn_of_the_end_marker_alone_is_found_without_text(self, step):
        row = step.rows[5]
        start, stop = row.runs()[-1]
        row.splice(start, stop - 1, [], sampled=True)
        (seen,) = flag_population(population_of(step.batch()), only=["empty_completion"]).items()
        assert seen[0] == 5
        (flag,) = seen[1]
        assert flag.message == f"The sampled turn at token {start} is nothing but the end marker."
        assert (flag.start, flag.stop) == (start, start + 1)

    def test_one_token_that_is_no_end_marker_is_an_answer(self, step):
        row = step.rows[5]
        start, stop = row.runs()[-1]
        row.splice(start, stop, step.encode("4")[:1], sampled=True)
        assert not flag_population(population_of(step.batch()), only=["empty_completion"])

    def test_white_space_alone_is_empty(self, step, find):
        body(step, " \n\n")
        assert len(find("empty_completion")) == 1

    def test_a_call_without_words_is_not_empty(self, step, find):
        body(step, '<tool_call>\n{"name": "calculator", "arguments": {"expression": "1"}}\n</tool_call>')
        assert not find("empty_completion")

    def test_thinking_without_an_answer_is_empty(self, step, find):
        body(step, "<think>\nWhat now?\n</think>\n\n")
        (flag,) = find("empty_completion")
        assert "nothing but thinking" in flag.message

    def test_a_row_in_which_nothing_was_sampled(self, step):
        row = step.rows[5]
        row.splice(row.runs()[0][0], len(row), [], sampled=False)
        assert 5 in flag_population(population_of(step.batch()), only=["empty_completion"])


SENTENCES = {
    "Chinese": "首先，我们用Python计算这个三角形的面积，然后检查答案是否等于42。",
    "Japanese": "まず三角形の面積をNumPyで計算し、それから答えが正しいかどうかを確かめます。",
    "Korean": "먼저 삼각형의 넓이를 GPU로 계산한 다음 大韓民國의 답이 맞는지 확인합니다.",
    "Russian": "Сначала вычислим площадь треугольника в Python, затем проверим ответ.",
    "Ukrainian": "Спочатку обчислимо площу трикутника, а потім перевіримо відповідь.",
    "Arabic": "أولاً نحسب مساحة المثلث باستخدام Python ثم نتحقق من أن الإجابة صحيحة.",
    "Hebrew": "קודם נחשב את שטח המשולש ב-Python ואחר כך נבדוק שהתשובה נכונה.",
    "Hindi": "पहले हम त्रिभुज का क्षेत्रफल Python में निकालते हैं, फिर उत्तर की जाँच करते हैं।",
    "Bengali": "প্রথমে আমরা ত্রিভুজের ক্ষেত্রফল বের করি, তারপর উত্তরটি যাচাই করি।",
    "Tamil": "முதலில் முக்கோணத்தின் பரப்பளவைக் கணக்கிட்டு, பிறகு விடையைச் சரிபார்ப்போம்.",
    "Thai": "ก่อนอื่นเราคำนวณพื้นที่ของสามเหลี่ยมด้วยPythonแล้วตรวจสอบว่าคำตอบถูกต้อง",
    "Greek": "Πρώτα υπολογίζουμε το εμβαδόν του τριγώνου και μετά ελέγχουμε την απάντηση.",
    "Armenian": "Նախ հաշվենք եռանկյան մակերեսը, ապա ստուգենք պատասխանը։",
    "Georgian": "ჯერ გამოვთვალოთ სამკუთხედის ფართობი, შემდეგ შევამოწმოთ პასუხი.",
}


class TestGibberish:
    @pytest.mark.parametrize("text", SENTENCES.values(), ids=SENTENCES)
    def test_a_language_that_the_prompt_does_not_use_is_fine(self, step, find, text):
        write(step, text * 12)
        assert not find("gibberish")

    def test_words_of_several_scripts_are_not(self, step, find):
        write(step, "пр한иве的т какक дไела " * 12)
        (flag,) = find("gibberish")
        assert "several scripts" in flag.message

    def test_a_script_that_the_prompt_uses_is_fine(self, step, find):
        at = step.rows[5].runs()[0][1] + 9
        step.rows[5].splice(at, at, step.encode("привет"), sampled=False)
        step.rows[5].tracks["loss_mask"][at : at + 12] = 0
        step.rows[5].tracks["versions"][at : at + len(step.encode("привет"))] = -1
        write(step, "привет как дела " * 10)
        assert not find("gibberish")

    @pytest.mark.parametrize(
        "text", ["α + β ≤ γ, so ∑ δ → ∞ " * 10, "🎉 done ✓ – naïve café " * 10, "完成 ✓"]
    )
    def test_mathematics_accents_emoji_and_a_few_letters_are_fine(self, step, find, text):
        write(step, text)
        assert not find("gibberish")

    def test_a_cut_character_at_the_end_is_fine(self, step, find):
        ids = step.encode("语")
        assert len(ids) > 1
        start = step.rows[5].runs()[-1][1] - 1
        step.rows[5].splice(start, start, ids[:-1], sampled=True)
        assert not find("gibberish")

    def test_bytes_that_are_no_characters_are_not(self, step, find):
        piece = step.encode("语")[0]
        start = step.rows[5].runs()[-1][1] - 1
        step.rows[5].splice(start, start, [piece] * 60, sampled=True)
        (flag,) = find("gibberish")
        assert "broken" in flag.message
        assert flag.start >= start
        assert flag.stop <= start + 60


class TestToolsAndThinking:
    def test_a_good_call_is_not_flagged_and_each_broken_one_is(self, step, find):
        good = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "1"}}\n</tool_call>'
        broken = '<tool_call>\n{"name": "calculator", "arguments": \n</tool_call>'
        body(step, f"{good}\n{broken}\n{broken}")
        assert len(find("tool_call_unparsed")) == 2

    def test_closed_thinking_and_talk_of_the_marker_are_fine(self, step, find):
        body(step, "<think>\nhm\n</think>\n\nPut your thoughts after the opening tag.")
        assert not find("thinking_unclosed")

    def test_of_two_blocks_the_open_one_is_pointed_at(self, step, find):
        start = step.rows[5].runs()[-1][0]
        closed = "<think>\nhm\n</think>\n\nNo."
        body(step, f"{closed}\n<think>\nBut then again")
        (flag,) = find("thinking_unclosed")
        assert flag.start > start + len(step.encode(closed)) - 2

    def test_tags_that_the_template_does_not_know_count_where_the_answer_begins_with_them(self, step, find):
        body(step, "<reasoning>\nWithout an end")
        (flag,) = find("thinking_unclosed")
        assert flag.start == step.rows[5].runs()[-1][0]

    def test_the_mention_of_another_family_inside_an_answer_is_content(self, step, find):
        body(step, "The tag <reasoning> opens a block, and [THINK] is Mistral's.")
        assert not find("thinking_unclosed")

    def test_a_result_that_merely_speaks_of_errors_is_no_error(self, step, find, tokenizer):
        row = step.rows[5]
        text = "\n<|im_start|>user\n<tool_response>\nThe error rate is 2 %.\n</tool_response><|im_end|>\n"
        new, n = step.encode(text), len(row)
        before = len(find("tool_error"))
        row.splice(n, n, new, sampled=False)
        row.tracks["versions"][n:] = -1
        row.tracks["loss_mask"][n:] = 0
        assert len(find("tool_error")) == before

    def test_a_hostile_tool_result_gives_a_sentence_that_can_be_encoded(self, step, decoder):
        row = step.rows[5]
        text = "\n<|im_start|>user\n<tool_response>\nError: \x00\x1b[2J<script>\n</tool_response><|im_end|>\n"
        n = len(row)
        row.splice(n, n, step.encode(text), sampled=False)
        batch = step.batch(without=("versions",))
        traced = TracedRow(decoder.decode_batch(batch, [5])[0], batch, 5)
        flag = flag_row(traced, only=["tool_error"])[-1]
        assert flag.message.isprintable()


class TestScripts:
    @pytest.mark.parametrize(
        ("text", "changes"),
        [
            ("", []),
            ("a", [0]),
            ("ab", [0, 0]),
            ("aя", [0, 1]),
            ("яab", [0, 1, 0]),
            ("a яb", [0, 0, 0, 1]),
            ("a1я", [0, 0, 0]),
            ("a日b", [0, 0, 0]),  # names in Latin letters
            ("я日", [0, 1]),
            ("한日", [0, 0]),  # Korean with Chinese characters
            ("한я", [0, 1]),
            ("日ひ", [0, 0]),
            ("αa", [0, 0]),  # mathematics
        ],
    )
    def test_letters_that_no_language_writes_side_by_side_are_marked(self, text, changes):
        assert script_changes(script_codes(code_points(text))).tolist() == [bool(each) for each in changes]


def test_a_loop_is_repetition_where_its_short_period_fills_half_of_the_window():
    half, n = int(FILLED * WINDOW), 1000

    def is_repetition(period: int, start: int, stop: int) -> bool:
        return _is_repetition(Loop(0, period, start, stop), n)

    assert is_repetition(LONGEST_PERIOD, n - half - 1, n)
    assert not is_repetition(LONGEST_PERIOD + 1, n - half - 1, n)
    assert not is_repetition(LONGEST_PERIOD, n - half, n)
    assert is_repetition(3, 0, n - half + 1) and not is_repetition(3, 0, n - half)


class TestAStretchOfCharacters:
    @pytest.mark.parametrize(
        ("first", "last", "tokens"),
        [(0, 0, (1, 2)), (1, 4, (1, 2)), (4, 5, (1, 3)), (5, 9, (2, 3)), (10, 11, (3, 4)), (3, 12, (1, 5))],
    )
    def test_lies_on_the_tokens_that_its_ends_are_in(self, first, last, tokens):
        transcript = make_transcript([("user", "to be left"), ("assistant", "abcdefghijkl")])
        turn = transcript.turns[1]
        body = turn.raw.index("abcdefghijkl")
        where = np.isin(np.arange(len(turn.raw)), [body + first, body + last])
        if last == 12:  # up to the end of the turn's end marker
            where[-1] = True
        flag = text._at_characters("gibberish", "said", transcript, 1, where)
        assert (flag.turn, flag.start - turn.start, flag.stop - turn.start) == (1, *tokens)
        assert (flag.name, flag.message) == ("gibberish", "said")

    def test_of_a_rollout_without_tokens_is_its_turns(self):
        transcript = make_transcript([("assistant", "abc")])
        flag = text._at_characters(
            "gibberish", "said", replace(transcript, tokens=TokenTrack.empty()), 0, np.asarray([True])
        )
        assert (flag.turn, flag.start, flag.stop) == (0, None, None)


class TestTokenAt:
    def test_every_character_is_found_in_the_token_that_begins_it(self, step, decoder):
        write(step, "ä语🎉 fin")
        transcript = decoder.decode_batch(step.batch(), [5])[0]
        index = len(transcript.turns) - 1
        turn = transcript.turns[index]
        texts = list(transcript.token_texts())
        for character in range(len(turn.raw)):
            at = token_at(transcript, index, character)
            assert turn.start <= at < turn.stop
            until = at
            while not texts[until]:
                until += 1
            assert turn.raw[character] in texts[until]
        assert np.all(np.diff([token_at(transcript, index, c) for c in range(len(turn.raw))]) >= 0)


class TestLoop:
    def test_the_times_are_whole_where_they_are(self, step, find):
        """Seen once: the same token 5000.0 times."""
        row = step.rows[5]
        write(step, " ".join(map(str, np.random.default_rng(4).permutation(900)[:90] + 100)))
        at = row.runs()[0][0] + 1
        row.splice(at, at, step.encode("9")[:1] * 1500, sampled=True)
        (flag,) = find("loop")
        assert flag.message == "The same token 1,500 times in a row, 1,500 tokens in all."
