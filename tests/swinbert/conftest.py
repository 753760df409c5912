"""A source tree with SwinBERT's file names and import lines; what the files do is ours."""

import json

import pytest
from swinbert_numbers import original, shell  # noqa: F401

TRAIN = "src/tasks/run_caption_VidSwinBert.py"
INFERENCE = "src/tasks/run_caption_VidSwinBert_inference.py"
VIDEO = "src/modeling/video_captioning_e2e_vid_swin_bert.py"

_TRAIN = '''from __future__ import absolute_import, division, print_function

import os
import sys
import torch
import deepspeed
from apex import amp
from apex.parallel import DistributedDataParallel as DDP  # the one of apex
from src.modeling.video_captioning_e2e_vid_swin_bert import VideoTransformer
from src.modeling.load_swin import get_swin_model, reload_pretrained_swin
from src.modeling.load_bert import get_bert_model
from src.solver import AdamW, WarmupLinearLR

from azureml.core.run import Run
aml_run = Run.get_context()

def mixed_precision_init(args, model, optimizer):
    param_optimizer = list(model.named_parameters())
    no_decay = ['bias', 'LayerNorm.bias', 'LayerNorm.weight']
    decayed = [n for n, p in param_optimizer if not any(nd in n for nd in no_decay)]
    if args.mixed_precision_method == "fairscale":
        from fairscale.optim.oss import OSS
        return OSS(model)
    if args.mixed_precision_method == "deepspeed":
        return deepspeed.initialize(model=model)
    return amp.initialize(model, optimizer, enabled=True, opt_level=f'O{args.amp_opt_level}')

def update_existing_config_for_inference(args):
    """ 어휘 and other words that are no ASCII """   
    train_args = args.of_training
    train_args.model_name_or_path = 'models/captioning/bert-base-uncased/'   # hard-coded
    return train_args

def main(args):
    args.device = torch.device(args.device)
    # Get BERT and tokenizer 
    bert_model, config, tokenizer = get_bert_model(args)
    args.model_name_or_path = args.pretrained_checkpoint
    return VideoTransformer(args, config, get_swin_model(args), bert_model)
'''

_INFERENCE = """import os
import torch
from apex import amp
import deepspeed
from src.modeling.video_captioning_e2e_vid_swin_bert import VideoTransformer
from src.modeling.load_swin import get_swin_model, reload_pretrained_swin
from src.modeling.load_bert import get_bert_model

def update_existing_config_for_inference(args):
    train_args = args.of_training
    train_args.model_name_or_path = 'models/captioning/bert-base-uncased/'
    return train_args

def main(args):
    args = update_existing_config_for_inference(args)
    bert_model, config, tokenizer = get_bert_model(args)
    return VideoTransformer(args, config, get_swin_model(args), bert_model)"""

# The model around the text model: visual tokens through `fc`, a learned mask, the text model called
# by name.
_VIDEO = """import torch
from fairscale.nn.misc import checkpoint_wrapper

class VideoTransformer(torch.nn.Module):
    def __init__(self, args, config, swin, transformer_encoder):
        super().__init__()
        self.config = config
        self.swin = checkpoint_wrapper(swin, offload_to_cpu=True) if args.use_checkpoint else swin
        self.trans_encoder = transformer_encoder
        self.tokens = int(args.max_img_seq_length)
        self.fc = torch.nn.Linear(swin.width, int(args.img_feature_dim))
        self.learn_vid_att = torch.nn.Embedding(self.tokens ** 2, 1)

    def forward(self, **inputs):
        inputs['img_feats'] = self.fc(self.swin(inputs['img_feats']))
        if self.trans_encoder.bert.encoder.output_attentions:
            self.trans_encoder.bert.encoder.set_output_attentions(False)
        own = torch.eye(self.tokens).cuda()
        gate = torch.sigmoid(self.learn_vid_att.weight).reshape(self.tokens, -1) * (1 - own) + own
        inputs['attention_mask'] = inputs['attention_mask'].float()
        inputs['attention_mask'][:, -self.tokens:, -self.tokens:] = gate
        return self.trans_encoder(**inputs)
"""

# Captions are scored with what only SwinBERT's container has.
_SCORING = """import json
from .coco_caption.pycocotools.coco import COCO
from .coco_caption.pycocoevalcap.eval import COCOEvalCap
from .cider.pyciderevalcap.ciderD.ciderD import CiderD

def evaluate_on_coco_caption(res_file, label_file):
    coco = COCO(label_file)
    cocoRes = coco.loadRes(res_file)
    cocoEval = COCOEvalCap(coco, cocoRes, 'corpus')
    cocoEval.params['image_id'] = cocoRes.getImgIds()
    cocoEval.evaluate()
    return cocoEval.eval

def reward(df):
    return CiderD(df=df)
"""

_CONFIG = """import argparse
import torch

def parser():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", type=str, default='cuda',
                            help="cuda or cpu")
    return parser
"""

_FILES = {
    TRAIN: _TRAIN.encode(),
    INFERENCE: b"\xef\xbb\xbf"
    + _INFERENCE.replace("\n", "\r\n").encode(),  # as some editors leave it
    VIDEO: _VIDEO.encode(),
    "src/evalcap/utils_caption_evaluate.py": _SCORING.encode(),
    "src/configs/config.py": _CONFIG.encode(),
    "src/modeling/load_bert.py": b"from src.layers.bert import BertForImageCaptioning\n\ndef get_bert_model(args): pass\n",
    "src/modeling/load_swin.py": b"def get_swin_model(args): pass\n\ndef reload_pretrained_swin(swin, args): pass\n",
    "src/solver/__init__.py": b"AdamW = WarmupLinearLR = None\n",
    "src/layers/bert/__init__.py": b"class BertForImageCaptioning:\n    get_bert_model = None\n",
    "src/layers/bert/modeling_bert.py": b"import apex\n\ndef f(x):\n    return x.cuda()\n",
    "src/utils/load_save.py": b"import torch\nfrom apex import amp\n\ndef _to_cuda(x):\n    return x.cuda()  # set before\n",
    "src/evalcap/python2.py": b"import torch\nprint 'x'.cuda()\n",  # Python 2
    "src/configs/VidSwinBert/vatex_8frm_default.json": json.dumps(
        {
            "model_name_or_path": "models/captioning/bert-base-uncased/",
            "output_dir": "output/vatex/",
            "seed": 88,
            "mixed_precision_method": "deepspeed",
            "use_checkpoint": True,
        }
    ).encode(),
    "src/configs/VidSwinBert/local_debug.json": b'{"model_name_or_path": "models/captioning/bert-base-uncased/"}',
    "README.md": b"get_bert_model\n",
}


def contents(folder):
    """Every file of a folder, by its path."""
    return {
        file.relative_to(folder).as_posix(): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file()
    }


@pytest.fixture
def checkout(tmp_path):
    """The tree, fresh."""
    folder = tmp_path / "SwinBERT"
    for name, content in _FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture
def files_of():
    """`contents`, for tests that compare trees."""
    return contents
