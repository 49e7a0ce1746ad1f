"""Token ids -> conversations: the detokenizer, the chat template's dialect, turns and their content."""

from rollout_traces.decode.decoder import TranscriptDecoder
from rollout_traces.decode.template_markers import Closer, Opener, TemplateMarkers

__all__ = ["Closer", "Opener", "TemplateMarkers", "TranscriptDecoder"]
