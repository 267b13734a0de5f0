"""Takes what was sampled behind a chunk: a token, and the next ones while the draft says what was chosen.

The invariant: of a draft's tokens those count whose place in the text is certain, and none behind an end, an
error or a token that the draft didn't say. It knows neither the scheduler nor the model.
"""

from collections.abc import Callable, Sequence

from seedance_server.engine.batch import Chunk
from seedance_server.engine.generation import Generation
from seedance_server.engine.sampler import RowLogprobs, SampledTokens
from seedance_server.engine.sequence import FinishReason, SequenceOutput, TokenLogprob
from seedance_server.engine.speculation import Speculation

__all__ = ["Acceptance"]


class Acceptance:
    """Turns sampled tokens into outputs.

    Args:
        decode: The tokenizer's, from token ids to text; names the tokens of log-probabilities.

    Attributes:
        tokens: Tokens that were taken since the start.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self.tokens = 0

    def accept(
        self,
        generation: Generation,
        chunk: Chunk,
        sampled: SampledTokens,
        first_row: int,
        speculation: Speculation,
    ) -> SequenceOutput:
        """Take the tokens of one chunk.

        Args:
            generation: Of the chunk's sequence.
            chunk: One that samples.
            sampled: Of the whole step.
            first_row: Where in ``sampled`` the chunk's rows begin.
            speculation: Told how good the draft was.
        """
        output = SequenceOutput(id=chunk.sequence.id)
        for ahead, row in enumerate(range(first_row, first_row + chunk.sampled_rows)):
            token_id, error = sampled.ids[row], sampled.errors[row]
            if error is not None:
                output = output.followed_by(generation.abandon(FinishReason.ERROR, error))
                break
            self.tokens += 1
            chunk.sequence.computed += ahead > 0  # the draft's token before this one was right
            logprob = self._token_logprob(token_id, sampled.logprobs[row])
            output = output.followed_by(generation.accept(token_id, logprob))
            if output.finish is not None or chunk.draft[ahead : ahead + 1] != (token_id,):
                break
        speculation.learn(chunk.sequence, len(chunk.draft), ahead)
        return output

    def _token_logprob(self, token_id: int, logprobs: RowLogprobs | None) -> TokenLogprob | None:
        if logprobs is None:
            return None
        top = tuple((other, self._decode([other]), logprob) for other, logprob in logprobs.top)
        return TokenLogprob(token_id, self._decode([token_id]), logprobs.logprob, top)
