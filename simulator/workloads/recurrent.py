"""The two recurrent classifiers of "BPPSA: Scaling Back-propagation by Parallel Scan Algorithm" (Wang et al., MLSys 2020).

Both read a sequence with one recurrent layer of 20 units and classify its last state. `image_size` is the length of the sequence.
"""

from simulator.workloads.registry import workload
from simulator.workloads.sequences import audio_clips, bit_streams, features_of


@workload(
    "rnn_bitstream",
    image_size=1000,
    parameters=670,
    about="RNN on bit streams: Wang et al. 2020, BPPSA, section 4.1",
    data=bit_streams,
    batch=16,
)
def rnn_bitstream(batch: int, image_size: int) -> tuple:
    """Build a vanilla RNN that tells 10 classes of random bits apart: a bit of class c is 1 with probability 0.05 + 0.1 c."""
    import torch

    from simulator.workloads.networks.recurrent import HIDDEN, SequenceClassifier

    labels = torch.randint(10, (batch,))
    probability = (0.05 + 0.1 * labels).unsqueeze(1)
    bits = (torch.rand(batch, image_size) < probability).to(torch.get_default_dtype())
    return SequenceClassifier(torch.nn.RNN(1, HIDDEN, batch_first=True), 10).train(), (bits.unsqueeze(2),), labels


@workload(
    "gru_features",
    image_size=259,
    parameters=3_831,
    about="GRU on audio features: Wang et al. 2020, BPPSA, section 4.2 (S; --image-size 517 is M, 1034 is L)",
    data=audio_clips,
    batch=16,
)
def gru_features(batch: int, image_size: int) -> tuple:
    """Build a GRU that tells the 11 instruments of IRMAS apart by features of audio clips, here synthetic; set S has 38 features a step."""
    import torch

    from simulator.workloads.networks.recurrent import HIDDEN, SequenceClassifier

    features = features_of(image_size)
    x = torch.randn(batch, image_size, features)
    return SequenceClassifier(torch.nn.GRU(features, HIDDEN, batch_first=True), 11).train(), (x,), torch.randint(11, (batch,))
