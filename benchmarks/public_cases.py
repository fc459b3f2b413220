"""Modules of public repositories, and how to build them: {name: (repository, code that binds
`module` and `inputs`)}. `root` is the repository's folder."""

STUBBED = frozenset(
    """
    gym gymnasium tyro hyperpyyaml joblib torchvision soundfile librosa cv2 matplotlib pandas
    seaborn trainer coqpit tensorboardX monotonic_align omegaconf hydra ffmpeg
    sacrebleu configargparse ctranslate2 pyonmttok scikit-learn sklearn gruut audiotools
    ultralytics thop PIL patoolib reformer_pytorch axial_positional_embedding tiktoken numba
    product_key_memory bitarray editdistance axial pywt accelerate ema_pytorch datasets evaluate
    hyper_connections wandb pytorch_fid spacy nltk fairseq2 torchaudio
    unidecode anyascii pysbd bangla bnnumerizer bnunicodenormalizer argbind mamba_ssm taming
    huggingface_hub safetensors inflect tokenizers transformers encodec g2pkk jamo hangul_romanize
    ahocorasick rapidfuzz sktime tensorflow mixture_of_experts rotary_embedding_torch g_mlp_pytorch
    youtokentome webdataset dora xformers imgaug openunmix tensorboard texttable dill base58
    cached_path fairscale lmdb torchmetrics terminaltables thefuzz tabulate
    memory_efficient_attention_pytorch ruamel fasttext cloudpickle docstring_parser _cffi_backend
    """.split()
)

_SERIES = """
from types import SimpleNamespace
import importlib
config = SimpleNamespace(task_name={task!r}, seq_len=96, label_len=48, pred_len=96, enc_in=7,
    dec_in=7, c_out=7, d_model=32, n_heads=4, e_layers=2, d_layers=1, d_ff=64, moving_avg=25,
    factor=1, distil=True, dropout=0.1, embed="timeF", freq="h", activation="gelu", top_k=3,
    num_kernels=3, channel_independence=1, decomp_method="moving_avg", use_norm=1,
    down_sampling_layers=2, down_sampling_window=2, down_sampling_method="avg", seg_len=24,
    p_hidden_dims=[32, 32], p_hidden_layers=2, expand=2, d_conv=4, patch_len=16, node_dim=10,
    gcn_depth=2, gcn_dropout=0.3, propalpha=0.3, conv_channel=32, skip_channel=32, num_class=3,
    batch_size=2, use_gpu=False, output_attention=False, individual=False, alpha=0.1, top_p=0.5,
    pos=1, use_amp=False, root_path="", device=torch.device("cpu"), data="ETTh1", features="M",
    mask_rate=0.25, subgraph_size=3, stride=8, period=24)
module = importlib.import_module("models.{name}").Model(config)
inputs = (torch.randn(2, 96, 7), torch.randn(2, 96, 4), torch.randn(2, 144, 7),
    torch.randn(2, 144, 4))
"""


def _series(name, task="long_term_forecast"):
    return "thuml+Time-Series-Library", _SERIES.format(name=name, task=task)


def _cases(repository, setup="", **setups):
    return {
        f"{repository.split('+')[1]}.{name}": (repository, setup + text)
        for name, text in setups.items()
    }


CASES = {
    f"series.{name}": _series(name)
    for name in """
    Autoformer Crossformer DLinear FEDformer FiLM FreTS Informer LightTS
    MSGNet MambaSimple MultiPatchFormer Nonstationary_Transformer PAttn PatchTST SCINet
    SegRNN TSMixer TiDE TimeFilter TimeMixer TimeXer TimesNet Transformer iTransformer WPMixer
    TemporalFusionTransformer
    """.split()
}
_VITS = "sys.path.insert(0, root)\nimport models, modules, attentions\n"
CASES |= _cases(
    "jaywalnut310+vits",
    duration=_VITS
    + """
module = models.StochasticDurationPredictor(16, 16, 3, 0.1, 4)
inputs = torch.randn(2, 16, 9), torch.ones(2, 1, 9), torch.rand(2, 1, 9)
""",
    text=_VITS
    + """
module = models.TextEncoder(20, 16, 16, 32, 2, 2, 3, 0.1)
inputs = torch.randint(0, 20, (2, 9)), torch.tensor([9, 7])
""",
    coupling=_VITS
    + """
module = models.ResidualCouplingBlock(16, 16, 5, 1, 2)
inputs = torch.randn(2, 16, 9), torch.ones(2, 1, 9)
""",
    posterior=_VITS
    + """
module = models.PosteriorEncoder(16, 16, 16, 5, 1, 2)
inputs = torch.randn(2, 16, 9), torch.tensor([9, 7])
""",
    discriminator=_VITS
    + """
module = models.MultiPeriodDiscriminator()
inputs = torch.randn(1, 1, 2048), torch.randn(1, 1, 2048)
""",
    slices=_VITS
    + """
import commons
class Slices(nn.Module):
    def forward(self, x, lengths):
        return commons.rand_slice_segments(x, lengths, 4)
module, inputs = Slices(), (torch.randn(2, 3, 20), torch.tensor([20, 15]))
""",
)
_POINTS = "sys.path.insert(0, root + '/models')\n"
CASES |= _cases(
    "yanx27+Pointnet_Pointnet2_pytorch",
    ssg=_POINTS
    + """
import pointnet2_cls_ssg
module, inputs = pointnet2_cls_ssg.get_model(10, False).eval(), (torch.randn(2, 3, 600),)
""",
    msg=_POINTS
    + """
import pointnet2_cls_msg
module, inputs = pointnet2_cls_msg.get_model(10, False).eval(), (torch.randn(2, 3, 600),)
""",
    semantic=_POINTS
    + """
import pointnet2_sem_seg
module, inputs = pointnet2_sem_seg.get_model(5).eval(), (torch.randn(1, 9, 1100),)
""",
    pointnet=_POINTS
    + """
import pointnet_cls
module, inputs = pointnet_cls.get_model(10, False).eval(), (torch.randn(2, 3, 64),)
""",
)
CASES |= _cases(
    "Diego999+pyGAT",
    dense="""
import models
module, inputs = models.GAT(8, 4, 3, 0.1, 0.2, 2), (torch.randn(6, 8), torch.eye(6))
""",
    sparse="""
import models
module, inputs = models.SpGAT(8, 4, 3, 0.1, 0.2, 2), (torch.randn(6, 8), torch.eye(6))
""",
)
CASES |= _cases(
    "karpathy+nanoGPT",
    gpt="""
import model
config = model.GPTConfig(block_size=32, vocab_size=50, n_layer=2, n_head=2, n_embd=16)
module, ids = model.GPT(config), torch.randint(0, 50, (2, 16))
inputs = ids, ids
""",
    generate="""
import model
config = model.GPTConfig(block_size=32, vocab_size=50, n_layer=2, n_head=2, n_embd=16)
gpt, ids = model.GPT(config).eval(), torch.randint(0, 50, (2, 16))
class Generate(nn.Module):
    def __init__(self):
        super().__init__()
        self.gpt = gpt
    def forward(self, ids):
        return self.gpt.generate(ids, 2, top_k=5)
module, inputs = Generate(), (ids,)
""",
)
_EXAMPLES = "sys.path.insert(0, root + '/{0}')\nimport importlib\n"
CASES |= _cases(
    "pytorch+examples",
    sequence=_EXAMPLES.format("time_sequence_prediction")
    + """
import train
module, inputs = train.Sequence().double(), (torch.randn(2, 6).double(), 2)
""",
    style=_EXAMPLES.format("fast_neural_style/neural_style")
    + """
import transformer_net
module, inputs = transformer_net.TransformerNet(), (torch.randn(1, 3, 32, 32),)
""",
)
_VQ = "import vector_quantize_pytorch as vq\nx = torch.randn(2, 24, 16)\n"
CASES |= _cases(
    "lucidrains+vector-quantize-pytorch",
    vq=_VQ + "module, inputs = vq.VectorQuantize(dim=16, codebook_size=32), (x,)",
    kmeans=_VQ
    + "module, inputs = vq.VectorQuantize(dim=16, codebook_size=8, kmeans_init=True), (x,)",
    expire=_VQ
    + """
module = vq.VectorQuantize(dim=16, codebook_size=32, threshold_ema_dead_code=2,
    use_cosine_sim=True, orthogonal_reg_weight=1.)
inputs = (x,)
""",
    residual=_VQ
    + """
module = vq.ResidualVQ(dim=16, codebook_size=32, num_quantizers=4, quantize_dropout=True)
inputs = (x,)
""",
    grouped=_VQ
    + """
module = vq.GroupedResidualVQ(dim=16, codebook_size=32, num_quantizers=2, groups=2)
inputs = (x,)
""",
    fsq=_VQ + "module, inputs = vq.FSQ([8, 5, 5, 5], dim=16), (x,)",
    residual_fsq=_VQ
    + "module, inputs = vq.ResidualFSQ(dim=16, levels=[5, 5], num_quantizers=3), (x,)",
    lfq=_VQ + "module, inputs = vq.LFQ(dim=16, codebook_size=256), (x,)",
    latent=_VQ
    + """
module = vq.LatentQuantize(levels=[5, 5, 8], dim=16)
inputs = (torch.randn(1, 16, 8, 8),)
""",
    random=_VQ
    + """
module = vq.RandomProjectionQuantizer(dim=16, num_codebooks=2, codebook_dim=8, codebook_size=16)
inputs = (x,)
""",
    sim=_VQ + "module, inputs = vq.SimVQ(dim=16, codebook_size=16), (x,)",
)
_DIFFUSION = """
import denoising_diffusion_pytorch.denoising_diffusion_pytorch as d
unet = d.Unet(dim=16, dim_mults=(1, 2), flash_attn=False)
"""
CASES |= _cases(
    "lucidrains+denoising-diffusion-pytorch",
    unet=_DIFFUSION + "module, inputs = unet, (torch.randn(1, 3, 16, 16), torch.tensor([3]))",
    diffusion=_DIFFUSION
    + """
module = d.GaussianDiffusion(unet, image_size=16, timesteps=10)
inputs = (torch.rand(1, 3, 16, 16),)
""",
    one="""
import denoising_diffusion_pytorch.denoising_diffusion_pytorch_1d as d
unet = d.Unet1D(dim=16, dim_mults=(1, 2), channels=4)
module = d.GaussianDiffusion1D(unet, seq_length=16, timesteps=10)
inputs = (torch.rand(1, 4, 16),)
""",
    elucidated=_DIFFUSION
    + """
import denoising_diffusion_pytorch.elucidated_diffusion as e
unet = d.Unet(dim=16, dim_mults=(1, 2), flash_attn=False, learned_sinusoidal_cond=True)
module, inputs = e.ElucidatedDiffusion(unet, image_size=16), (torch.rand(1, 3, 16, 16),)
""",
)
CASES |= _cases(
    "lucidrains+egnn-pytorch",
    layer="""
from egnn_pytorch import EGNN
module = EGNN(dim=16, num_nearest_neighbors=3)
inputs = torch.randn(1, 8, 16), torch.randn(1, 8, 3)
""",
    sparse="""
from egnn_pytorch import EGNN
module = EGNN(dim=16, only_sparse_neighbors=True, num_nearest_neighbors=4)
adjacent = (torch.arange(8)[:, None] - torch.arange(8)[None]).abs() <= 1
inputs = torch.randn(1, 8, 16), torch.randn(1, 8, 3), None, None, adjacent
""",
    network="""
from egnn_pytorch import EGNN_Network
module = EGNN_Network(num_tokens=10, dim=16, depth=2, num_nearest_neighbors=3, num_positions=8)
inputs = torch.randint(0, 10, (1, 8)), torch.randn(1, 8, 3)
""",
)
CASES |= _cases(
    "lucidrains+CoLT5-attention",
    feedforward="""
from colt5_attention import ConditionalRoutedFeedForward
module = ConditionalRoutedFeedForward(16, num_heavy_tokens=4)
inputs = (torch.randn(1, 24, 16),)
""",
    attention="""
from colt5_attention import ConditionalRoutedAttention
module = ConditionalRoutedAttention(dim=16, num_heavy_tokens_q=4, num_heavy_tokens_kv=4,
    light_dim_head=8, light_heads=2, light_window_size=8, heavy_dim_head=8, heavy_heads=2,
    has_light_attn=False)
inputs = (torch.randn(1, 24, 16),)
""",
)
CASES |= _cases(
    "lucidrains+mixture-of-experts",
    moe="""
from mixture_of_experts import MoE
module, inputs = MoE(dim=16, num_experts=4), (torch.randn(2, 12, 16),)
""",
    hierarchical="""
from mixture_of_experts import HeirarchicalMoE
module, inputs = HeirarchicalMoE(dim=16, num_experts=(2, 2)), (torch.randn(2, 12, 16),)
""",
)
CASES |= _cases(
    "lucidrains+performer-pytorch",
    attention="""
from performer_pytorch import FastAttention
module = FastAttention(dim_heads=8, nb_features=16)
inputs = tuple(torch.randn(1, 2, 12, 8) for _ in range(3))
""",
    performer="""
from performer_pytorch import Performer
module, inputs = Performer(dim=16, depth=2, heads=2, dim_head=8), (torch.randn(1, 12, 16),)
""",
)
CASES |= _cases(
    "lucidrains+reformer-pytorch",
    lsh="""
from reformer_pytorch.reformer_pytorch import LSHAttention
module = LSHAttention(bucket_size=4, n_hashes=2, causal=True)
inputs = torch.randn(2, 16, 8), torch.randn(2, 16, 8)
""",
)
CASES |= _cases(
    "lucidrains+routing-transformer",
    kmeans="""
from routing_transformer.routing_transformer import Kmeans
module, inputs = Kmeans(2, 8, 4), (torch.randn(1, 2, 16, 8), True)
""",
    attention="""
from routing_transformer.routing_transformer import KmeansAttention
module = KmeansAttention(4, 4, 2, 8)
inputs = tuple(torch.randn(1, 2, 16, 8) for _ in range(3))
""",
)
_SB = "import speechbrain\nx = torch.randn(2, 40, 16)\nlengths = torch.tensor([1.0, 0.5])\n"
CASES |= _cases(
    "speechbrain+speechbrain",
    setup=_SB,
    norm="from speechbrain.processing.features import InputNormalization as M\n"
    "module, inputs = M(), (x, lengths)",
    norm_sentence="from speechbrain.processing.features import InputNormalization as M\n"
    "module, inputs = M(norm_type='sentence'), (x, lengths)",
    fbank="from speechbrain.lobes.features import Fbank\n"
    "module, inputs = Fbank(deltas=True, context=True), (torch.randn(2, 8000),)",
    mfcc="from speechbrain.lobes.features import MFCC\n"
    "module, inputs = MFCC(), (torch.randn(2, 8000),)",
    ecapa="from speechbrain.lobes.models.ECAPA_TDNN import ECAPA_TDNN\n"
    "module = ECAPA_TDNN(16, channels=[16] * 5, attention_channels=8, lin_neurons=8)\n"
    "inputs = x, lengths",
    pooling="from speechbrain.nnet.pooling import StatisticsPooling\n"
    "module, inputs = StatisticsPooling(), (x, lengths)",
    xvector="from speechbrain.lobes.models.Xvector import Xvector\n"
    "module = Xvector(device='cpu', in_channels=16, lin_neurons=8, tdnn_channels=[16] * 5)\n"
    "inputs = x, lengths",
    lstm="from speechbrain.nnet.RNN import LSTM\n"
    "module, inputs = LSTM(hidden_size=8, input_shape=x.shape), (x, None, lengths)",
    ligru="from speechbrain.nnet.RNN import LiGRU\n"
    "module, inputs = LiGRU(hidden_size=8, input_shape=x.shape), (x,)",
    location="from speechbrain.nnet.attention import LocationAwareAttention as A\n"
    "module = A(enc_dim=16, dec_dim=8, attn_dim=8, output_dim=8, conv_channels=4, kernel_size=3)\n"
    "inputs = x, torch.tensor([40, 20]), torch.randn(2, 8)",
    dropfreq="from speechbrain.augment.time_domain import DropFreq\n"
    "module, inputs = DropFreq(), (torch.randn(2, 8000),)",
    dropchunk="from speechbrain.augment.time_domain import DropChunk\n"
    "module, inputs = DropChunk(), (torch.randn(2, 8000), lengths)",
    speed="from speechbrain.augment.time_domain import SpeedPerturb\n"
    "module, inputs = SpeedPerturb(16000), (torch.randn(2, 8000),)",
    spectrogram="from speechbrain.augment.freq_domain import SpectrogramDrop\n"
    "module, inputs = SpectrogramDrop(), (x,)",
    warping="from speechbrain.augment.freq_domain import Warping\nmodule, inputs = Warping(), (x,)",
    conformer="from speechbrain.lobes.models.transformer.Conformer import ConformerEncoder\n"
    "from speechbrain.nnet.attention import RelPosEncXL\n"
    "module = ConformerEncoder(num_layers=1, d_ffn=16, nhead=2, d_model=16, kernel_size=3)\n"
    "inputs = x, None, None, RelPosEncXL(16)(x)",
    gumbel="from speechbrain.nnet.quantisers import GumbelVectorQuantizer as Q\n"
    "module, inputs = Q(16, 8, (2, 0.5, 0.9), 2, 16), (x,)",
    masks="from speechbrain.lobes.models.wav2vec import compute_mask\n"
    "module, inputs = compute_mask, ((2, 40), [40, 30], 0.3, 4)",
    transducer="from speechbrain.nnet.losses import nll_loss\n"
    "module = nll_loss\n"
    "inputs = x.log_softmax(-1), torch.randint(0, 16, (2, 40)), lengths",
)
CASES |= _cases(
    "OpenNMT+OpenNMT-py",
    attention="""
from onmt.modules.global_attention import GlobalAttention
module = GlobalAttention(8)
inputs = torch.randn(2, 4, 8), torch.randn(2, 6, 8), torch.tensor([6, 4])
""",
    multihead="""
from onmt.modules.multi_headed_attn import MultiHeadedAttention
module = MultiHeadedAttention(2, 8, is_decoder=False, max_relative_positions=4, attn_type="self")
x = torch.randn(2, 6, 8)
inputs = x, x, x
""",
    moe="""
from onmt.modules.moe import MoE
module = MoE(4, 2, 8, 16, 0.1, "relu", False, False, "standard", 1e-6)
inputs = (torch.randn(2, 6, 8),)
""",
    sparsemax="""
from onmt.modules.sparse_activations import LogSparsemax
module, inputs = LogSparsemax(-1), (torch.randn(2, 6),)
""",
    convolution="""
from onmt.encoders.cnn_encoder import CNNEncoder
class Embeddings(nn.Embedding):
    embedding_size = 8
module = CNNEncoder(2, 8, 3, 0.1, Embeddings(10, 8))
inputs = torch.randint(0, 10, (2, 6)), torch.tensor([6, 6])
""",
)
CASES |= _cases(
    "openai+whisper",
    whisper="""
import sys
from whisper.model import ModelDimensions, Whisper
module = Whisper(ModelDimensions(8, 10, 16, 2, 1, 20, 6, 16, 2, 1))
inputs = torch.randn(1, 8, 20), torch.randint(0, 20, (1, 5))
""",
)
CASES |= _cases(
    "openai+spinningup",
    critic="""
import importlib.util
from unittest import mock
sys.modules["gym"] = gym = mock.MagicMock(); sys.modules["gym.spaces"] = spaces = mock.MagicMock()
class Box: shape = (3,)
spaces.Box, spaces.Discrete = Box, type("Discrete", (), {})
spec = importlib.util.spec_from_file_location("core", root + "/spinup/algos/pytorch/ppo/core.py")
core = importlib.util.module_from_spec(spec); spec.loader.exec_module(core)
module = core.MLPActorCritic(Box(), Box()); module.forward = module.step
inputs = (torch.randn(3),)
""",
    squashed="""
import importlib.util
spec = importlib.util.spec_from_file_location("core", root + "/spinup/algos/pytorch/sac/core.py")
core = importlib.util.module_from_spec(spec); spec.loader.exec_module(core)
module = core.SquashedGaussianMLPActor(3, 2, (8, 8), nn.ReLU, 1.0)
inputs = (torch.randn(4, 3),)
""",
)
_TTS = "import importlib\n"
CASES |= _cases(
    "coqui-ai+TTS",
    duration=_TTS
    + """
from TTS.tts.layers.glow_tts.duration_predictor import DurationPredictor
module, inputs = DurationPredictor(8, 8, 3, 0.1), (torch.randn(2, 8, 6), torch.ones(2, 1, 6))
""",
    glow=_TTS
    + """
from TTS.tts.layers.glow_tts.decoder import Decoder
module = Decoder(8, 8, 3, 1, 2, 2)
inputs = torch.randn(2, 8, 12), torch.ones(2, 1, 12)
""",
    relative=_TTS
    + """
from TTS.tts.layers.glow_tts.transformer import RelativePositionTransformer as T
module = T(8, 8, 8, 16, 2, 2, 3, rel_attn_window_size=4)
inputs = torch.randn(2, 8, 12), torch.ones(2, 1, 12)
""",
    tacotron=_TTS
    + """
from TTS.tts.layers.tacotron.tacotron2 import Encoder
module, inputs = Encoder(16), (torch.randn(2, 16, 10), torch.tensor([10, 8]))
""",
    monotonic=_TTS
    + """
from TTS.tts.layers.tacotron.attentions import GravesAttention
module = GravesAttention(8, 2); x = torch.randn(2, 6, 8); module.init_states(x)
inputs = torch.randn(2, 8), x, x, torch.ones(2, 6).bool()
""",
    losses=_TTS
    + """
from TTS.tts.layers.losses import L1LossMasked
module = L1LossMasked(False)
inputs = torch.randn(2, 6, 4), torch.randn(2, 6, 4), torch.tensor([6, 4])
""",
    ssim=_TTS
    + """
from TTS.tts.layers.losses import SSIMLoss
module = SSIMLoss()
inputs = torch.randn(2, 16, 16), torch.randn(2, 16, 16), torch.tensor([16, 12])
""",
    hmm=_TTS
    + """
from TTS.tts.layers.overflow.common_layers import Encoder
module = Encoder(10, 2, 8, 3)
inputs = torch.randint(0, 10, (2, 6)), torch.tensor([6, 4])
""",
    guided=_TTS
    + """
from TTS.tts.layers.losses import GuidedAttentionLoss
module = GuidedAttentionLoss()
inputs = torch.rand(2, 6, 5), torch.tensor([5, 4]), torch.tensor([6, 3])
""",
    vits=_TTS
    + """
from TTS.tts.layers.vits.stochastic_duration_predictor import StochasticDurationPredictor as P
module = P(8, 8, 3, 0.1)
inputs = torch.randn(2, 8, 6), torch.ones(2, 1, 6), torch.rand(2, 1, 6)
""",
    univnet=_TTS
    + """
from TTS.vocoder.layers.losses import MultiScaleSTFTLoss
module, inputs = MultiScaleSTFTLoss(), (torch.randn(1, 1, 8000), torch.randn(1, 1, 8000))
""",
)
CASES |= _cases(
    "facebookresearch+fairseq",
    setup="""
bare("fairseq", "fairseq.modules", "fairseq.distributed", "fairseq.models")
x = torch.randn(6, 2, 16)
""",
    sinusoidal="from fairseq.modules.sinusoidal_positional_embedding import "
    "SinusoidalPositionalEmbedding as M\n"
    "module, inputs = M(16, 1), (torch.randint(2, 9, (2, 6)),)",
    adaptive="from fairseq.modules.adaptive_softmax import AdaptiveSoftmax as M\n"
    "module = M(40, 16, [10, 20], 0.1)\n"
    "inputs = torch.randn(2, 6, 16), torch.randint(0, 40, (2, 6))",
    adaptive_input="from fairseq.modules.adaptive_input import AdaptiveInput as M\n"
    "module = M(40, 0, 16, 4, 16, [10, 20])\ninputs = (torch.randint(0, 40, (2, 6)),)",
    gumbel="from fairseq.modules.gumbel_vector_quantizer import GumbelVectorQuantizer as M\n"
    "module = M(16, 8, (2, 0.5, 0.9), 2, False, 16, True)\ninputs = (torch.randn(2, 6, 16),)",
    dynamic="from fairseq.modules.dynamic_convolution import DynamicConv1dTBC as M\n"
    "module, inputs = M(16, 3, 1, 2, weight_softmax=True), (torch.randn(6, 2, 16),)",
    character="from fairseq.modules.learned_positional_embedding import "
    "LearnedPositionalEmbedding as M\n"
    "module, inputs = M(20, 16, 1), (torch.randint(2, 9, (2, 6)),)",
    drop="from fairseq.modules.layer_drop import LayerDropModuleList\n"
    "class Stack(nn.Module):\n"
    "    def __init__(self):\n"
    "        super().__init__()\n"
    "        self.layers = LayerDropModuleList(0.2, [nn.Linear(4, 4) for _ in range(3)])\n"
    "    def forward(self, x):\n"
    "        for layer in self.layers:\n"
    "            x = layer(x)\n"
    "        return x\n"
    "module, inputs = Stack(), (torch.randn(2, 4),)",
)
CASES |= _cases(
    "vwxyzjn+cleanrl",
    ppo="""
from types import SimpleNamespace
from unittest import mock
sys.modules["torch.utils.tensorboard"] = mock.MagicMock()
import cleanrl.ppo as ppo
space = SimpleNamespace(shape=(4,)), SimpleNamespace(n=2)
class Agent(ppo.Agent):
    def forward(self, x):
        return self.get_action_and_value(x)
module = Agent(SimpleNamespace(single_observation_space=space[0], single_action_space=space[1]))
inputs = (torch.randn(3, 4),)
""",
    sac="""
from types import SimpleNamespace
from unittest import mock
import numpy as np
sys.modules["torch.utils.tensorboard"] = mock.MagicMock()
import cleanrl.sac_continuous_action as sac
box = SimpleNamespace(shape=(2,), high=np.ones(2), low=-np.ones(2))
env = SimpleNamespace(single_observation_space=SimpleNamespace(shape=(4,)),
    single_action_space=box, action_space=box)
class Direct(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor = sac.Actor(env)
    def forward(self, x):
        return self.actor.get_action(x)
module, inputs = Direct(), (torch.randn(3, 4),)
""",
)
CASES |= _cases(
    "descriptinc+descript-audio-codec",
    quantize="""
from dac.nn.quantize import ResidualVectorQuantize as Q
module = Q(input_dim=16, n_codebooks=3, codebook_size=16, codebook_dim=4, quantizer_dropout=0.5)
inputs = (torch.randn(2, 16, 10),)
""",
)
