"""More modules of public repositories: {name: (repository, code that binds `module` and
`inputs`)}, as in public_cases.py."""


def cases(repository, setup="", **setups):
    return {
        f"{repository.split('+')[1]}.{name}": (repository, setup + text)
        for name, text in setups.items()
    }


class_of = """
class Of(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
    def forward(self, *args):
        return self.function(*args)
"""

MORE = cases(
    "ming024+FastSpeech2",
    setup="sys.path.insert(0, root)\nbare('model', 'utils')\nimport model.modules as m\n",
    regulator="""
module = m.LengthRegulator()
inputs = torch.randn(2, 4, 8), torch.tensor([[1, 2, 1, 3], [2, 1, 1, 0]]), None
""",
    predictor="""
config = {"transformer": {"encoder_hidden": 8}, "variance_predictor": {"filter_size": 8,
    "kernel_size": 3, "dropout": 0.1}}
module = m.VariancePredictor(config)
inputs = torch.randn(2, 5, 8), torch.tensor([[0, 0, 0, 0, 0], [0, 0, 0, 1, 1]]).bool()
""",
    mask="""
import utils.tools as t
module = t.get_mask_from_lengths
inputs = (torch.tensor([5, 3]),)
""",
    loss="""
import model.loss as l
module = l.FastSpeech2Loss({"preprocessing": {"pitch": {"feature": "phoneme_level"},
    "energy": {"feature": "phoneme_level"}}}, {})
mel, masks = torch.randn(2, 6, 4), (torch.zeros(2, 5).bool(), torch.zeros(2, 6).bool())
flat, durations = torch.randn(2, 5), torch.ones(2, 5).long()
targets = (None,) * 6 + (mel, None, None, flat, flat, durations)
inputs = targets, (mel, mel, flat, flat, flat, durations, *masks, None, None)
""",
)
MORE |= cases(
    "IBM+pytorch-seq2seq",
    setup="bare('seq2seq', 'seq2seq.models', 'torchtext')\n",
    decoder="""
from seq2seq.models.DecoderRNN import DecoderRNN
module = DecoderRNN(12, 5, 8, 1, 2)
inputs = torch.randint(0, 12, (2, 6)), torch.randn(1, 2, 8)
""",
    attentive="""
from seq2seq.models.DecoderRNN import DecoderRNN
module = DecoderRNN(12, 5, 8, 1, 2, use_attention=True)
inputs = torch.randint(0, 12, (2, 6)), torch.randn(1, 2, 8), torch.randn(2, 7, 8)
""",
    encoder="""
from seq2seq.models.EncoderRNN import EncoderRNN
module = EncoderRNN(12, 9, 8, variable_lengths=True)
inputs = torch.randint(0, 12, (2, 6)), [6, 4]
""",
)
MORE |= cases(
    "NVIDIA+tacotron2",
    setup="""
for name in ("librosa", "librosa.filters", "librosa.util"):
    sys.modules[name] = mock.MagicMock()
torch.cuda.LongTensor, torch.cuda.FloatTensor = torch.LongTensor, torch.FloatTensor
import model as taco
hparams = types.SimpleNamespace(n_mel_channels=8, n_symbols=20, symbols_embedding_dim=16,
    encoder_kernel_size=5, encoder_n_convolutions=1, encoder_embedding_dim=16,
    n_frames_per_step=1, decoder_rnn_dim=16, prenet_dim=8, max_decoder_steps=6,
    gate_threshold=0.5, p_attention_dropout=0.1, p_decoder_dropout=0.1, attention_rnn_dim=16,
    attention_dim=8, attention_location_n_filters=4, attention_location_kernel_size=5,
    postnet_embedding_dim=8, postnet_kernel_size=5, postnet_n_convolutions=2, mask_padding=True,
    fp16_run=False)
""",
    encoder="""
module, inputs = taco.Encoder(hparams), (torch.randn(2, 16, 7), torch.tensor([7, 5]))
""",
    decoder="""
module = taco.Decoder(hparams)
inputs = torch.randn(2, 7, 16), torch.randn(2, 8, 5), torch.tensor([7, 5])
""",
    inference="""
module = taco.Decoder(hparams).eval(); module.forward = module.inference
inputs = (torch.randn(1, 7, 16),)
""",
    tacotron="""
module = taco.Tacotron2(hparams)
inputs = ((torch.randint(0, 20, (2, 7)), torch.tensor([7, 5]), torch.randn(2, 8, 6), 7,
    torch.tensor([6, 4])),)
""",
)
_ODE = (
    class_of
    + """
from torchdiffeq import odeint, odeint_adjoint
class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(3, 3)
    def forward(self, t, y):
        return torch.tanh(self.net(y))
class Ode(nn.Module):
    def __init__(self, solve, **options):
        super().__init__()
        self.field, self.solve, self.options = Field(), solve, options
    def forward(self, y):
        return self.solve(self.field, y, torch.tensor([0.0, 0.5, 1.0]), **self.options)
inputs = (torch.randn(2, 3),)
"""
)
MORE |= cases(
    "rtqichen+torchdiffeq",
    setup=_ODE,
    dopri5="module = Ode(odeint, rtol=1e-3, atol=1e-3)",
    rk4="module = Ode(odeint, method='rk4')",
    euler="module = Ode(odeint, method='euler', options={'step_size': 0.25})",
    adams="module = Ode(odeint, method='implicit_adams')",
    adjoint="module = Ode(odeint_adjoint, rtol=1e-3, atol=1e-3)",
)
_DEQ = "sys.path.insert(0, root)\n" + class_of
MORE |= cases(
    "locuslab+deq",
    setup=_DEQ,
    broyden="""
from lib.solvers import broyden
class Fixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Conv1d(4, 4, 1)
    def forward(self, x):
        with torch.no_grad():
            return broyden(lambda z: torch.tanh(self.net(z)) + x, torch.zeros_like(x), 12)["result"]
module, inputs = Fixed(), (torch.randn(2, 4, 5),)
""",
    power="""
from lib.jacobian import jac_loss_estimate
class Jacobian(nn.Module):
    def forward(self, z):
        z = z.clone().requires_grad_()
        return jac_loss_estimate(torch.tanh(z), z)
module, inputs = Jacobian(), (torch.randn(2, 4, 5),)
""",
    embedding="""
sys.path.insert(0, root + '/DEQ-Sequence')
from utils.adaptive_embedding import AdaptiveEmbedding
module = AdaptiveEmbedding(40, 16, 16, [10, 20], div_val=2)
inputs = (torch.randint(0, 40, (2, 6)),)
""",
    softmax="""
sys.path.insert(0, root + '/DEQ-Sequence')
import torch.version
torch.version.cuda = "12.0"
from utils.proj_adaptive_softmax import ProjectedAdaptiveLogSoftmax
module = ProjectedAdaptiveLogSoftmax(40, 16, 16, [10, 20], div_val=2)
inputs = torch.randn(12, 16), torch.randint(0, 40, (12,))
""",
    drop="""
from lib.optimizations import VariationalHidDropout
module = VariationalHidDropout(0.3)
module.reset_mask(2, 4, 5)
inputs = (torch.randn(2, 4, 5),)
""",
)
_REC = (
    """
sys.modules["torch.utils.tensorboard"] = mock.MagicMock()
bare("recbole", "recbole.model", "recbole.data", "recbole.model.sequential_recommender",
    "recbole.model.general_recommender", "recbole.model.context_aware_recommender",
    "recbole.model.knowledge_aware_recommender")
class Config(dict):
    def __missing__(self, key):
        return None
config = Config(USER_ID_FIELD="user", ITEM_ID_FIELD="item", NEG_PREFIX="neg_", LIST_SUFFIX="_list",
    ITEM_LIST_LENGTH_FIELD="length", MAX_ITEM_LIST_LENGTH=6, device=torch.device("cpu"),
    embedding_size=8, hidden_size=8, n_layers=1, n_heads=2, inner_size=16, loss_type="CE", step=1,
    hidden_dropout_prob=0.1, attn_dropout_prob=0.1, hidden_act="gelu", layer_norm_eps=1e-6,
    weight=0.6, reg_weight=0.1, initializer_range=0.02, dropout_probs=[0.1, 0.1], num_layers=1,
    dropout_prob=0.1, mask_ratio=0.3, k_interests=2, joint_train=False, prototype_size=4,
    interest_size=2, tau_ratio=0.1, short_item_length=2, MODEL_TYPE=None, n_facet=1,
    mask_strategy=0,
    cpu=True, w=2, nv=2, nh=2, L=3, pooling_type="average", block_num=1,
    kernel_size=3, dilations=[1],
    lmd=0.1, tau=1, contrast="us_x", sim="dot", lmd_sem=0.1, noise_base=0.0, topk_factor=1,
    global_ratio=1, dual_domain=True, std=False, spatial_ratio=0.1, fredom=False,
    fredom_type=None, history_len=4, anneal_cap=0.2, total_anneal_steps=100, mlp_hidden_size=[8],
    latent_dimension=4, latent_dim=4, dropout_prob_=0.1, drop_out=0.1, nb=2, temperature=1.0)
dataset = types.SimpleNamespace(num=lambda field: 20, user_num=20, item_num=20,
    field2type={}, fields=lambda **k: [])
sequence = torch.tensor([[1, 5, 3, 2, 0, 0], [4, 4, 9, 8, 7, 6]])
inputs = sequence, torch.tensor([4, 6])
import importlib
def model(name, cls, kind="sequential"):
    at = importlib.import_module(f"recbole.model.{kind}_recommender.{name}")
    return getattr(at, cls)(config, dataset)
"""
    + class_of
)
MORE |= cases(
    "RUCAIBox+RecBole",
    setup=_REC,
    srgnn="module = model('srgnn', 'SRGNN')",
    gcsan="module = model('gcsan', 'GCSAN')",
    narm="module = model('narm', 'NARM')",
    sasrec="module = model('sasrec', 'SASRec')",
    gru="module = model('gru4rec', 'GRU4Rec')",
    stamp="module = model('stamp', 'STAMP')",
    sine="config['layers'] = 1\nmodule = model('sine', 'SINE')",
    lightsans="module = model('lightsans', 'LightSANs')",
    repeatnet="module = model('repeatnet', 'RepeatNet')",
    nextitnet="module = model('nextitnet', 'NextItNet')\ninputs = (sequence,)",
    bert="""
module = model('bert4rec', 'BERT4Rec')
inputs = (sequence,)
""",
    rebuild="""
config["MASK_FIELD"] = "mask"
module = model('bert4rec', 'BERT4Rec'); module.forward = module.reconstruct_test_data
""",
    interest="""
from recbole.model.layers import AttLayer, ContextSeqEmbLayer, MLPLayers, SequenceAttLayer
module = SequenceAttLayer(torch.arange(2), [32, 8], return_seq_weight=False)
inputs = torch.randn(3, 8), torch.randn(3, 2, 8), torch.tensor([2, 1, 2])
""",
)
MORE |= cases(
    "Megvii-BaseDetection+YOLOX",
    setup="bare('yolox', 'yolox.models', 'yolox.utils')\nimport yolox.utils\n"
    "from yolox.utils.boxes import *\nfrom yolox.utils.compat import meshgrid\n"
    "for n in ('bboxes_iou', 'cxcywh2xyxy', 'meshgrid'): setattr(yolox.utils, n, globals()[n])\n"
    "yolox.utils.visualize_assign = None\n"
    "boxes = torch.zeros(2, 5, 5)\n"
    "boxes[0, :2] = torch.tensor([[0, 16., 16, 8, 8], [1, 8., 24, 9, 6]])\n"
    "boxes[1, :1] = torch.tensor([[1, 12., 12, 10, 10]])\n",
    losses="""
from yolox.models.yolo_head import YOLOXHead
module = YOLOXHead(3, 0.125, in_channels=[16, 16, 16]); module.initialize_biases(0.01)
levels = [torch.randn(2, 2, s, s) for s in (8, 4, 2)]
inputs = [torch.randn(2, 2, s, s) for s in (8, 4, 2)], boxes, torch.randn(2, 3, 64, 64)
""",
    head="""
from yolox.models.yolo_head import YOLOXHead
module = YOLOXHead(3, 0.125, in_channels=[16, 16, 16]).eval()
inputs = ([torch.randn(2, 2, s, s) for s in (8, 4, 2)],)
""",
    fpn="""
from yolox.models.yolo_pafpn import YOLOPAFPN
module, inputs = YOLOPAFPN(0.33, 0.125), (torch.randn(1, 3, 64, 64),)
""",
    postprocess="""
import torchvision
torchvision.ops = types.SimpleNamespace(nms=lambda b, s, t: s.argsort(descending=True)[:3],
    batched_nms=lambda b, s, i, t: s.argsort(descending=True)[:3])
module, inputs = postprocess, (torch.rand(2, 20, 8), 3, 0.3)
""",
)
MORE |= cases(
    "eriklindernoren+PyTorch-YOLOv3",
    setup="bare('pytorchyolo', 'pytorchyolo.utils')\n",
    layer="""
from pytorchyolo.models import YOLOLayer
module, inputs = YOLOLayer([(10, 13), (16, 30)], 3, False).eval(), (torch.randn(1, 16, 4, 4), 32)
""",
    loss="""
from pytorchyolo.models import YOLOLayer
from pytorchyolo.utils.loss import compute_loss
class Loss(nn.Module):
    def __init__(self):
        super().__init__()
        self.yolo_layers = [YOLOLayer([(10, 13), (16, 30), (33, 23)], 3, False)]
        self.yolo_layers[0].stride = 8
        self.weight = nn.Parameter(torch.ones(1))
    def forward(self, x, targets):
        return compute_loss([x * self.weight], targets, self)
module = Loss()
inputs = torch.randn(2, 3, 4, 4, 8), torch.tensor([[0, 1, .5, .5, .3, .3], [1, 0, .2, .3, .4, .2]])
""",
    nms="""
import torchvision
torchvision.ops = types.SimpleNamespace(nms=lambda b, s, t: s.argsort(descending=True)[:3])
import pytorchyolo.utils.utils as u
module, inputs = u.non_max_suppression, (torch.rand(2, 20, 8), 0.2)
""",
)
MORE |= cases(
    "facebookresearch+audiocraft",
    setup="""
bare("audiocraft", "audiocraft.modules", "audiocraft.quantization", "audiocraft.losses",
    "audiocraft.models", "audiocraft.utils")
sys.modules["flashy"] = types.ModuleType("flashy")
sys.modules["flashy.distrib"] = sys.modules["flashy"].distrib = distrib = types.ModuleType("d")
distrib.is_distributed = lambda: False
distrib.broadcast_tensors = lambda tensors, src=0: None
""",
    codebook="""
from audiocraft.quantization.core_vq import ResidualVectorQuantization as R
module = R(num_quantizers=2, dim=8, codebook_size=8, kmeans_init=True, threshold_ema_dead_code=2)
inputs = (torch.randn(2, 8, 12),)
""",
    residual="""
from audiocraft.quantization.vq import ResidualVectorQuantizer as R
module = R(dimension=8, n_q=3, bins=8, q_dropout=True, kmeans_init=False)
inputs = torch.randn(2, 8, 12), 50
""",
    encoder="""
from audiocraft.modules.seanet import SEANetEncoder
module = SEANetEncoder(1, 8, 4, ratios=[2, 2], lstm=1)
inputs = (torch.randn(2, 1, 64),)
""",
    decoder="""
from audiocraft.modules.seanet import SEANetDecoder
module = SEANetDecoder(1, 8, 4, ratios=[2, 2], causal=True)
inputs = (torch.randn(2, 8, 16),)
""",
    transformer="""
sys.modules["xformers"] = types.ModuleType("xformers")
sys.modules["xformers"].ops = types.SimpleNamespace(unbind=torch.unbind)
from audiocraft.modules.transformer import StreamingTransformer
module = StreamingTransformer(8, 2, 2, 16, causal=True, custom=True)
inputs = (torch.randn(2, 6, 8),)
""",
    sisnr="""
from audiocraft.losses.sisnr import SISNR
module, inputs = SISNR(sample_rate=100), (torch.randn(2, 1, 300), torch.randn(2, 1, 300))
""",
    stft="""
from audiocraft.losses.stftloss import MRSTFTLoss
module = MRSTFTLoss([64, 32], [16, 8], [64, 32])
inputs = torch.randn(2, 1, 300), torch.randn(2, 1, 300)
""",
    watermark="""
from audiocraft.losses.wmloss import WMDetectionLoss
module = WMDetectionLoss()
inputs = torch.rand(2, 2, 9), torch.rand(2, 2, 9), torch.ones(2, 1, 9)
""",
)
MORE |= cases(
    "facebookresearch+demucs",
    setup="bare('demucs')\n",
    demucs="""
from demucs.demucs import Demucs
module = Demucs(["a", "b"], channels=16, depth=2, lstm_layers=1, dconv_lstm=1, dconv_attn=1)
inputs = (torch.randn(1, 2, 800),)
""",
    hybrid="""
from demucs.hdemucs import HDemucs
module = HDemucs(["a", "b"], channels=4, nfft=256, depth=3, freq_emb=0.2)
inputs = (torch.randn(1, 2, 2048),)
""",
    shift="""
from demucs.augment import Shift
module, inputs = Shift(8), (torch.randn(2, 2, 2, 40),)
""",
    remix="""
from demucs.augment import Remix
module, inputs = Remix(1, 2), (torch.randn(4, 2, 2, 40),)
""",
    flip="""
from demucs.augment import FlipChannels
module, inputs = FlipChannels(), (torch.randn(4, 2, 2, 40),)
""",
    scale="""
from demucs.augment import Scale
module, inputs = Scale(), (torch.randn(4, 2, 2, 40),)
""",
    cross="""
from demucs.transformer import CrossTransformerEncoder
module = CrossTransformerEncoder(16, num_heads=2, num_layers=2, sin_random_shift=4)
inputs = torch.randn(1, 16, 4, 5), torch.randn(1, 16, 9)
""",
)
MORE |= cases(
    "facebookresearch+detectron2",
    setup="bare('detectron2', 'detectron2.modeling', 'detectron2.layers', 'detectron2.structures',"
    " 'detectron2.utils')\nimport detectron2.layers\n"
    "detectron2.layers.nonzero_tuple = lambda x: x.nonzero().unbind(1)\n"
    "detectron2.layers.cat = torch.cat\ndetectron2.structures.Boxes = None\n"
    "detectron2.layers.ciou_loss = detectron2.layers.diou_loss = None\n" + class_of,
    matcher="""
from detectron2.modeling.matcher import Matcher
module = Of(Matcher([0.3, 0.7], [0, -1, 1], True))
inputs = (torch.rand(3, 9),)
""",
    sampling="""
from detectron2.modeling.sampling import subsample_labels
module = Of(subsample_labels)
inputs = torch.tensor([0, 1, -1, 2, 0, 0, 1, -1]), 4, 0.5, 0
""",
    boxes="""
from detectron2.modeling.box_regression import Box2BoxTransform
module = Of(Box2BoxTransform((1.0, 1.0, 1.0, 1.0)).get_deltas)
inputs = torch.tensor([[0., 0, 4, 4], [1, 1, 3, 5]]), torch.tensor([[0., 1, 4, 5], [1, 2, 5, 5]])
""",
    linear="""
from detectron2.modeling.box_regression import Box2BoxTransformLinear
module = Of(Box2BoxTransformLinear().apply_deltas)
inputs = torch.rand(2, 4), torch.tensor([[0., 0, 4, 4], [1, 1, 3, 5]])
""",
)
MORE |= cases(
    "openai+CLIP",
    clip="""
bare("clip")
from clip.model import CLIP
module = CLIP(8, 32, 2, 64, 16, 6, 30, 16, 2, 2)
inputs = torch.randn(2, 3, 32, 32), torch.randint(0, 30, (2, 6))
""",
)
MORE |= cases(
    "allenai+longformer",
    setup="bare('longformer')\n" + class_of,
    chunks="""
from longformer.sliding_chunks import sliding_chunks_matmul_qk
module = Of(sliding_chunks_matmul_qk)
inputs = torch.randn(1, 16, 2, 4), torch.randn(1, 16, 2, 4), 4, 0.0
""",
    attention="""
sys.modules["transformers.modeling_roberta"] = types.ModuleType("x")
for n in ("RobertaConfig", "RobertaModel", "RobertaForMaskedLM"):
    setattr(sys.modules["transformers.modeling_roberta"], n, type(n, (nn.Module,), {}))
from longformer.longformer import LongformerSelfAttention
config = types.SimpleNamespace(hidden_size=8, num_attention_heads=2, attention_window=[4],
    attention_dilation=[1], attention_mode="sliding_chunks", autoregressive=False,
    output_attentions=False, attention_probs_dropout_prob=0.1)
module = LongformerSelfAttention(config, 0)
mask = torch.zeros(1, 1, 1, 16); mask[..., 0] = 10000.0; mask[..., 14:] = -10000.0
inputs = torch.randn(1, 16, 8), mask
""",
)
MORE |= cases(
    "rosinality+stylegan2-pytorch",
    setup=class_of
    + """
import torch.utils.cpp_extension
torch.utils.cpp_extension.load = mock.MagicMock()
""",
    generator="""
import model as stylegan
module, inputs = stylegan.Generator(16, 8, 2, 1), ([torch.randn(2, 8)],)
""",
    mixing="""
import model as stylegan
module = stylegan.Generator(16, 8, 2, 1)
inputs = ([torch.randn(2, 8), torch.randn(2, 8)],)
""",
    discriminator="""
import model as stylegan
module, inputs = stylegan.Discriminator(16, 1), (torch.randn(4, 3, 16, 16),)
""",
    color="""
import non_leaking
module, inputs = Of(lambda x: non_leaking.random_apply_color(x, 0.5)), (torch.rand(2, 3, 8, 8),)
module = Of(non_leaking.random_apply_color); inputs = torch.rand(2, 3, 8, 8), 0.5
""",
    affine="""
import non_leaking
module = Of(non_leaking.random_apply_affine); inputs = torch.rand(2, 3, 16, 16), 0.5
""",
)
_KORNIA = """
bare_mock("kornia_rs")
import kornia
import kornia.augmentation as K
x = torch.rand(2, 3, 16, 16)
inputs = (x,)
"""
MORE |= cases(
    "kornia+kornia",
    setup=_KORNIA + class_of,
    affine="module = K.RandomAffine(15.0, p=0.5)",
    jitter="module = K.ColorJiggle(0.1, 0.1, 0.1, 0.1, p=0.5)",
    erasing="module = K.RandomErasing(p=0.5)",
    crop="module = K.RandomResizedCrop((8, 8))",
    blur="module = K.RandomGaussianBlur((3, 3), (0.1, 2.0))",
    mixup="module, inputs = K.RandomMixUpV2(), (x, torch.tensor([0, 1]))",
    cutmix="module, inputs = K.RandomCutMixV2(), (x, torch.tensor([0, 1]))",
    sequential="module = K.AugmentationSequential(K.RandomHorizontalFlip(), K.RandomAffine(10.0))",
    equalize="module = Of(kornia.enhance.equalize)",
    clahe="module = Of(kornia.enhance.equalize_clahe)",
    canny="module = kornia.filters.Canny()",
    harris="module, inputs = kornia.feature.CornerHarris(0.04), (x[:, :1],)",
    matching="module, inputs = kornia.feature.DescriptorMatcher('snn', 0.8), (x[0, 0], x[0, 1])",
    ransac="""
module = kornia.geometry.RANSAC('homography', 2.0, 64, 2)
inputs = torch.rand(12, 2) * 10, torch.rand(12, 2) * 10
""",
    detector="""
module = kornia.feature.ScaleSpaceDetector(8)
inputs = (torch.rand(1, 1, 48, 48),)
""",
    lovasz="module = kornia.losses.LovaszSoftmaxLoss()\n"
    "inputs = torch.rand(2, 3, 8, 8), torch.randint(0, 3, (2, 8, 8))",
    focal="module = kornia.losses.FocalLoss(0.5, reduction='mean')\n"
    "inputs = torch.rand(2, 3, 8, 8), torch.randint(0, 3, (2, 8, 8))",
    hausdorff="module = kornia.losses.HausdorffERLoss()\n"
    "inputs = torch.rand(2, 3, 8, 8), torch.randint(0, 3, (2, 1, 8, 8))",
    components="module, inputs = Of(kornia.contrib.connected_components), (x[:, :1], 3)",
    distance="module, inputs = kornia.contrib.DistanceTransform(), (x[:, :1].round(),)",
)
MORE |= cases(
    "lucidrains+st-moe-pytorch",
    moe="""
from st_moe_pytorch import MoE
module, inputs = MoE(dim=16, num_experts=4), (torch.randn(2, 12, 16),)
""",
    block="""
from st_moe_pytorch import MoE, SparseMoEBlock
module = SparseMoEBlock(MoE(dim=16, num_experts=4, gating_top_n=3), add_ff_before=True)
inputs = (torch.randn(2, 12, 16),)
""",
)
MORE |= cases(
    "lucidrains+muse-maskgit-pytorch",
    setup="bare('muse_maskgit_pytorch')\n"
    "sys.path.insert(0, base + '/lucidrains+vector-quantize-pytorch')\n"
    "sys.modules['muse_maskgit_pytorch.t5'] = t5 = types.ModuleType('t5')\n"
    "t5.t5_encode_text = t5.get_encoded_dim = lambda *a: 16\nt5.DEFAULT_T5_NAME = 'x'\n"
    "from muse_maskgit_pytorch import muse_maskgit_pytorch as m\n"
    "net = m.MaskGitTransformer(num_tokens=32, seq_len=16, dim=16, depth=1, dim_head=8, heads=2,"
    " flash=False)\n",
    transformer="""
module = net
inputs = torch.randint(0, 32, (2, 16)),
forward = net.forward
net.forward = lambda ids: forward(ids, text_embeds=torch.ones(2, 4, 16))
""",
)
MORE |= cases(
    "lucidrains+DALLE-pytorch",
    setup="""
bare("dalle_pytorch")
sys.modules["dalle_pytorch.vae"] = vae = types.ModuleType("vae")
vae.OpenAIDiscreteVAE = vae.VQGanVAE = type("None_", (), {})
sys.modules["dalle_pytorch.distributed_utils"] = types.ModuleType("d")
sys.modules["dalle_pytorch"].distributed_utils = types.SimpleNamespace(is_distributed=False)
from dalle_pytorch import dalle_pytorch as d
""",
    vae="""
module = d.DiscreteVAE(16, 16, 8, 2, hidden_dim=8)
inputs = torch.rand(2, 3, 16, 16), True
""",
    clip="""
module = d.CLIP(dim_text=16, dim_image=16, dim_latent=16, num_text_tokens=20, text_enc_depth=1,
    text_seq_len=6, text_heads=2, visual_enc_depth=1, visual_heads=2, visual_image_size=16,
    visual_patch_size=8)
inputs = torch.randint(0, 20, (2, 6)), torch.rand(2, 3, 16, 16), torch.ones(2, 6).bool()
""",
)
MORE |= cases(
    "mistralai+mistral-inference",
    setup="sys.path.insert(0, root + '/src')\nbare('mistral_inference')\n"
    "bare_mock('simple_parsing.helpers')\n"
    "sys.modules['simple_parsing.helpers'].Serializable = type('S', (), {})\n",
    moe="""
from mistral_inference.moe import MoeArgs, MoeLayer
args = MoeArgs(num_experts=4, num_experts_per_tok=2)
module = MoeLayer([nn.Linear(8, 8) for _ in range(4)], nn.Linear(8, 4), args)
inputs = (torch.randn(6, 8),)
""",
    merger="""
from mistral_inference.vision_encoder import PatchMerger
module = PatchMerger(8, 2)
inputs = torch.randn(32, 8), [(4, 4), (4, 4)]
""",
)
MORE |= cases(
    "huggingface+pytorch-image-models",
    setup="bare('timm', 'timm.data', 'timm.loss', 'timm.layers')\nx = torch.randn(2, 3, 64, 64)\n",
    mixup="""
from timm.data.mixup import Mixup
class Mix(nn.Module):
    def __init__(self):
        super().__init__()
        self.mixup = Mixup(0.8, 1.0, num_classes=5)
    def forward(self, x, target):
        return self.mixup(x, target)
module, inputs = Mix(), (x, torch.tensor([1, 3]))
""",
    erasing="""
from timm.data.random_erasing import RandomErasing
class Erase(nn.Module):
    def __init__(self):
        super().__init__()
        self.erase = RandomErasing(1.0, device="cpu")
    def forward(self, x):
        return self.erase(x.clone())
module, inputs = Erase(), (x,)
""",
    jsd="""
from timm.loss.jsd import JsdCrossEntropy
module, inputs = JsdCrossEntropy(), (torch.randn(6, 5), torch.randint(0, 5, (6,)))
""",
    drop="""
from timm.layers.patch_dropout import PatchDropout
module, inputs = PatchDropout(0.5), (torch.randn(2, 17, 8),)
""",
    same="""
from timm.layers.conv2d_same import Conv2dSame
module, inputs = Conv2dSame(3, 4, 3, stride=2), (torch.randn(2, 3, 17, 17),)
""",
)
