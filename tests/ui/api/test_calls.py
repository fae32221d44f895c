"""What people write who never read the page on Python: each call answers, or one line says what to write, in Python's words."""

import pytest
import schedcast as sc
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

MODEL = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
X, Y = torch.randn(6, 8), torch.randint(4, (6,))
LOADER = DataLoader(TensorDataset(torch.randn(12, 8), torch.randint(4, (12,))), 6)
OPTIMIZER = torch.optim.AdamW(MODEL.parameters())
DECODER = "lm:form=llama,layers=2,d_model=64,heads=2,vocab=128"
H100 = {"on": "h100"}


def whole_step(model, batch):
    loss = F.cross_entropy(model(batch[0]), batch[1])
    loss.backward()
    OPTIMIZER.step()
    return loss


ANSWER = {
    "a pair": lambda: sc.predict(MODEL, (X, Y), **H100),
    "a list": lambda: sc.predict(MODEL, [X, Y], **H100),
    "inputs and target": lambda: sc.predict(MODEL, X, Y, **H100),
    "arrays": lambda: sc.predict(MODEL, X.numpy(), Y.numpy(), **H100),
    "a mapping": lambda: sc.predict(MODEL, {"input": X}, Y, **H100),
    "a batch of a loader": lambda: sc.predict(MODEL, next(iter(LOADER)), **H100),
    "the machine as a word": lambda: sc.predict(MODEL, (X, Y), "h100"),
    "a name and the machine as a word": lambda: sc.predict("lenet5", 8, "h100"),
    "a name without a batch": lambda: sc.predict("lenet5", **H100),
    "upper case": lambda: sc.predict("lenet5", 8, on="H100"),
    "a card alone": lambda: sc.predict("lenet5", 8, on="4090"),
    "machine=": lambda: sc.predict("lenet5", 8, machine="h100"),
    "gpu=": lambda: sc.predict("lenet5", 8, gpu="h100"),
    "batch_size=": lambda: sc.predict("lenet5", batch_size=8, **H100),
    "a device": lambda: sc.predict("lenet5", 8, on=torch.device("cpu")),
    "cpu": lambda: sc.predict("lenet5", 8, on="cpu"),
    "a loss module": lambda: sc.predict(MODEL, X, Y, loss=nn.CrossEntropyLoss(), **H100),
    "a loss function": lambda: sc.predict(MODEL, X, Y, loss=F.cross_entropy, **H100),
    "a loss by name": lambda: sc.predict(MODEL, X, Y, loss="cross_entropy", **H100),
    "a loss by its class's name": lambda: sc.predict(MODEL, X, Y, loss="CrossEntropyLoss", **H100),
    "a loss class": lambda: sc.predict(MODEL, X, Y, loss=nn.CrossEntropyLoss, **H100),
    "mse": lambda: sc.predict(MODEL, X, torch.randn(6, 4), loss="mse", **H100),
    "criterion=": lambda: sc.predict(MODEL, X, Y, criterion=nn.CrossEntropyLoss(), **H100),
    "loss_fn=": lambda: sc.predict(MODEL, X, Y, loss_fn=F.cross_entropy, **H100),
    "an optimizer": lambda: sc.predict(MODEL, (X, Y), optimizer=OPTIMIZER, **H100),
    "an optimizer's class": lambda: sc.predict(MODEL, (X, Y), optimizer=torch.optim.AdamW, **H100),
    "an optimizer's name": lambda: sc.predict(MODEL, (X, Y), optimizer="AdamW", **H100),
    "a type": lambda: sc.predict(MODEL, (X, Y), dtype=torch.bfloat16, **H100),
    "a type's name": lambda: sc.predict(MODEL, (X, Y), precision="bfloat16", **H100),
    "amp=True": lambda: sc.predict(MODEL, (X, Y), amp=True, **H100),
    "accumulation": lambda: sc.predict(MODEL, (X, Y), gradient_accumulation_steps=2, **H100),
    "clipping": lambda: sc.predict(MODEL, (X, Y), max_grad_norm=1.0, **H100),
    "checkpoint=True": lambda: sc.predict(MODEL, (X, Y), checkpoint=True, **H100),
    "gradient_checkpointing=": lambda: sc.predict(MODEL, (X, Y), gradient_checkpointing=True, **H100),
    "several strategies": lambda: sc.predict("lenet5", 8, on="h100", strategy=["turbodl", "backward-fusion"]),
    "ddp": lambda: sc.predict(DECODER, 4, on="2xh100", strategy="ddp", seq_len=16),
    "all GPUs": lambda: sc.predict(DECODER, 4, on="2xH100", num_gpus=2, seq=16),
    "tokens and a price": lambda: sc.predict(DECODER, 4, on="2xh100", seq=16, tokens="1B", price=2.5),
    "another machine": lambda: sc.predict("lenet5", 8, **H100).what_if(machine="A100"),
    "another optimizer": lambda: sc.predict("lenet5", 8, **H100).what_if(optimizer=torch.optim.Adam),
}  # fmt: skip

REFUSED = {
    "a loader": (lambda: sc.predict(MODEL, LOADER, **H100), "give one of them: next(iter(loader))"),
    "an iterator": (lambda: sc.predict(MODEL, iter(LOADER), **H100), "give one of them: next(loader)"),
    "a data set": (lambda: sc.predict(MODEL, LOADER.dataset, **H100), "next(iter(DataLoader(dataset, 32)))"),
    "no batch": (lambda: sc.predict(MODEL, **H100), "as in predict(model, (torch.randn"),
    "a number": (lambda: sc.predict(MODEL, 32, **H100), "a number is for models by name"),
    "a shape": (lambda: sc.predict(MODEL, (6, 8), **H100), "is (6, 8), a shape; expected its tensors"),
    "a class": (lambda: sc.predict(nn.Linear, (X, Y), **H100), "not Linear; make the module first"),
    "an unknown loss": (lambda: sc.predict(MODEL, X, Y, loss="focal", **H100), "unknown loss 'focal'; expected one of: cross_entropy"),
    "fp16 alone": (lambda: sc.predict(MODEL, (X, Y), precision="fp16", **H100), 'autocast to fp16 is precision="amp-fp16"'),
    "two names": (lambda: sc.predict("lenet5", 8, on="h100", gpu="a100"), "gpu= and on= mean the same; give one of the two"),
    "a step that trains": (lambda: sc.predict(MODEL, (X, Y), step=whole_step, **H100), "is accumulate=4, clipping clip_norm=1"),
    "a step of a batch": (lambda: sc.predict(MODEL, (X, Y), step=lambda batch: None, **H100), "returns the loss: def step(model, batch)"),
    "a step without a loss": (lambda: sc.predict(MODEL, (X, Y), step=lambda model, batch: None, **H100), "return the loss"),
    "a live module to run": (lambda: sc.validate(MODEL, 8), "write a factory and give FILE.py:FACTORY"),
    "microbatches that do not divide": (lambda: sc.predict("lenet5", 3, accumulate=2, **H100), "batch=3 is not divisible by accumulate=2"),
    "a GPU that is not there": (lambda: sc.predict("lenet5", 8, on="cuda"), 'on="this-gpu": no calibrated NVIDIA GPU'),
    "hours of nothing": (lambda: sc.predict("lenet5", 8, **H100).hours(), "as in hours(samples=1_281_167, epochs=90)"),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch):
    monkeypatch.setattr("calibrate.profiles.own_gpu_profile", lambda *given, **named: None)


@pytest.mark.parametrize("call", ANSWER)
def test_a_natural_call_answers(call):
    answer = ANSWER[call]()
    assert answer.step_s > 0
    assert answer.fits


@pytest.mark.parametrize("call", REFUSED)
def test_any_other_one_says_in_one_line_what_to_write(call):
    made, words = REFUSED[call]
    with pytest.raises(sc.SchedcastError) as error:
        made()
    assert words in str(error.value)
    assert "--" not in str(error.value).split("schedcast ")[0], "options are the command line's"
