"""Where requests go."""

from django.urls import path
from letters import views

urlpatterns = [
    path("subscribers/", views.subscribe),
    path("letters/", views.send),
    path("letters/<int:letter_id>/", views.show),
]
